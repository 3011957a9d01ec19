#!/usr/bin/env bash
# Run t5like on Cloud TPU VMs: one slice or several, requested through queued resources.
#
# usage: launch/tpu_pod.sh STEP NAME [OPTION]... [-- t5like train ...]
#
# example:
#   launch/tpu_pod.sh up demo --project=P --zone=us-west4-a --accelerator=v5litepod-16 --spot \
#       -- t5like train --gin_file=my_run.gin --gin.MODEL_DIR=gs://bucket/run
#
# `up` takes all steps, watches the run, goes on from its last checkpoint after a preemption, and deletes the pod when
# the run has ended. Each step can be taken alone, and again; what was told once (project, zone, ...) is remembered:
#
#   create    asks for the pod and waits until it is there       status    the state of the pod and of each worker
#   install   the same packages on all workers                   stop      the run saves and ends; the pod stays
#   start     the command after -- on all workers                delete    the pod is gone, and no longer billed
#   logs      worker 0's log, and errors of any, until the end   up        all of these
#
# The gin files and Python modules of the current folder that the command names are sent to all workers, where the
# command finds them under the same relative paths; so are files and folders of --with.
#
# options:
#   --project=P --zone=Z                 required the first time
#   --accelerator=v5litepod-16           required for create and up; or --type=v5p --topology=2x2x4
#   --slices=2                           several slices, connected over the data center's network (default: 1)
#   --spot, --reserved, --reservation=R  how it is paid for (default: on demand)
#   --runtime=VERSION                    the image (default: the one that goes with the accelerator)
#   --valid_until=6h                     give up waiting for the pod after this long (default: never)
#   --network --subnetwork --service_account --internal_ips --iap    as gcloud knows them
#   --from=PATH.whl | git+URL@REVISION   what to install (default: a wheel built from this checkout)
#   --as_of=2026-11-15T00:00:00Z         the day whose packages are installed (default: that of the first install)
#   --restarts=10                        how often a worker restarts a trainer that crashed; 0: never (default: 10)
#   --recreate=100                       how often `up` asks for a new pod after a preemption (default: 100)
#   --with=PATH                          also send this file or folder of the current folder; may be repeated
#   --keep                               `up` leaves the pod when the run has ended (default: it deletes the pod)
#   --dry_run                            print the commands, do nothing
#   --help                               print this text
#
# Exit status: 0; 1 it failed; 2 it cannot work as asked (quota, credentials, options). Of `up` and `logs`: the run's.
# shellcheck disable=SC2034,SC2154 # names that the sourced files read and set
set -euo pipefail
# shellcheck source=launch/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
launch="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=launch/tpu/gcloud.sh
source "$launch/tpu/gcloud.sh"
# shellcheck source=launch/tpu/pod.sh
source "$launch/tpu/pod.sh"
# shellcheck source=launch/tpu/package.sh
source "$launch/tpu/package.sh"
# shellcheck source=launch/tpu/run.sh
source "$launch/tpu/run.sh"
# shellcheck source=launch/tpu/up.sh
source "$launch/tpu/up.sh"

declare -A option=([slices]=1 [restarts]=10 [recreate]=100) given=()
with=() # as given: --with=PATH
values="project zone accelerator type topology slices reservation runtime valid_until network subnetwork"
values+=" service_account from as_of restarts recreate"
switches="spot reserved internal_ips iap keep dry_run"

step="${1:-}"
case "$step" in
  up | create | install | start | logs | status | stop | delete) shift ;;
  "") fail 2 "missing: a step" steps "up create install start logs status stop delete" try "launch/tpu_pod.sh --help" ;;
  *) fail 2 "what to do? '$step' is no step" steps "up create install start logs status stop delete" ;;
esac
while [ $# -gt 0 ] && [ "$1" != "--" ]; do
  key="${1#--}" && key="${key%%=*}"
  if [[ "$1" != -* ]]; then
    [ -z "$name" ] || fail 2 "which pod? $name or $1" && name="$1"
  elif [ "$key" = with ]; then
    [[ "$1" == --with=?* ]] || fail 2 "--with needs a value: --with=PATH" && with+=("$1")
  elif [[ " $values " == *" $key "* ]]; then
    [[ "$1" == --*=?* ]] || fail 2 "--$key needs a value: --$key=..." && given[$key]="${1#*=}"
  elif [[ " $switches " == *" $key "* ]]; then
    [ "$1" = "--$key" ] || fail 2 "--$key takes no value" && given[$key]=yes
  else
    fail 2 "there is no option $1" options "$values with $switches"
  fi
  shift
done
[[ "$name" =~ ^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$ ]] || fail 2 "'$name' cannot be the name of a pod" \
  expected "lower-case letters, digits and dashes, 40 at most" try "launch/tpu_pod.sh $step my-run --project=..."
if [ "${1:-}" = "--" ]; then shift; fi
run=("$@")

# What was told before, then what is told now.
memory="${T5LIKE_PODS:-$HOME/.t5like/pods}/$name"
if [ -e "$memory/options" ]; then
  while IFS='=' read -r key value; do option[$key]="$value"; done <"$memory/options"
fi
if [ -n "${given[spot]:-}${given[reserved]:-}${given[reservation]:-}" ]; then
  unset "option[spot]" "option[reserved]" "option[reservation]"
fi
for key in "${!given[@]}"; do option[$key]="${given[$key]}"; done
unset "option[dry_run]" "option[keep]"
dry_run="${given[dry_run]:-}" keep="${given[keep]:-}"
project="${option[project]:-}" slices="${option[slices]}"
[ -n "$project" ] || fail 2 "which project?" try "--project=..."
[ -n "${option[zone]:-}" ] || fail 2 "which zone?" try "--zone=us-west4-a"
where=("--project=$project" "--zone=${option[zone]}")
if [ -n "${option[iap]:-}" ]; then ssh_flags+=(--tunnel-through-iap); fi
for key in slices restarts recreate; do
  [[ "${option[$key]}" =~ ^[0-9]+$ ]] || fail 2 "--$key=${option[$key]} is not a number"
done
if [ -z "$dry_run" ]; then
  command -v gcloud >/dev/null || fail 2 "gcloud is not installed" see "https://cloud.google.com/sdk/docs/install"
  mkdir -p "$memory/t5like-pod"
  for key in "${!option[@]}"; do echo "$key=${option[$key]}"; done | sort >"$memory/options"
fi

trap 'end_streams 2>/dev/null; rm -rf "$scratch"; tell_bill' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
case "$step" in
  up) check_command "${run[@]}" && find_files && bring_up ;;
  start) check_command "${run[@]}" && find_files && start ;;
  *)
    [ ${#run[@]} -eq 0 ] || fail 2 "only start and up take a command after --"
    [ ${#with[@]} -eq 0 ] || fail 2 "only start and up take --with: the files go with the command"
    "$step"
    ;;
esac
