#!/usr/bin/env bash
# Run t5like on Cloud TPU VMs: one slice or several, requested through queued resources.
#
# usage: launch/tpu_pod.sh STEP NAME [OPTION]... [-- t5like train ...]
#
# example:
#   launch/tpu_pod.sh up demo --project=P --zone=us-west4-a --accelerator=v5litepod-16 --spot \
#       -- t5like train --gin_file=my_run.gin --gin.MODEL_DIR=gs://bucket/run
#
# `up` runs all steps, watches the run, resumes it from its last checkpoint after a preemption, and deletes the pod when
# the run has ended. Each step can also be run alone and repeated; options (project, zone, ...) are remembered:
#
#   create    requests the pod and waits until it is ready       status    prints the state of the pod and its workers
#   install   installs the same packages on all workers          stop      the run saves and exits; the pod stays
#   start     runs the command after -- on all workers           delete    deletes the pod, which ends its billing
#   logs      follows worker 0, and errors of any worker         up        all of these
#
# Gin files and Python modules of the current folder that the command uses, and files and folders of --with, are sent to
# all workers, where the command finds them under the same relative paths.
#
# options:
#   --project=P --zone=Z                 required the first time
#   --accelerator=v5litepod-16           required for create and up; or --type=v5p --topology=2x2x4
#   --slices=2                           several slices, connected over the data center's network (default: 1)
#   --spot, --reserved, --reservation=R  provisioning model (default: on demand)
#   --runtime=VERSION                    the image (default: the one for the accelerator)
#   --valid_until=6h                     stop waiting for the pod after this long (default: never)
#   --network --subnetwork --service_account --internal_ips --iap    as in gcloud
#   --from=PATH.whl | git+URL@REVISION   package to install (default: a wheel built from this checkout)
#   --as_of=2026-11-15T00:00:00Z         install packages as of this date (default: that of the first install)
#   --restarts=10                        restarts of a crashed trainer on a worker; 0: none (default: 10)
#   --recreate=100                       new pods that `up` requests after preemptions (default: 100)
#   --with=PATH                          also send this file or folder of the current folder; may be repeated
#   --keep                               `up` keeps the pod when the run has ended (default: delete it)
#   --dry_run                            print the commands without running them
#   --help                               print this text
#
# Exit status: 0 success; 1 failure; 2 invalid request (quota, credentials, options). `up` and `logs`: that of the run.
# shellcheck disable=SC2034,SC2154 # variables that the sourced files read and set
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
with=() # words of the form --with=PATH
values="project zone accelerator type topology slices reservation runtime valid_until network subnetwork"
values+=" service_account from as_of restarts recreate"
switches="spot reserved internal_ips iap keep dry_run"

step="${1:-}"
case "$step" in
  up | create | install | start | logs | status | stop | delete) shift ;;
  "") fail 2 "missing step" steps "up create install start logs status stop delete" try "launch/tpu_pod.sh --help" ;;
  *) fail 2 "unknown step '$step'" steps "up create install start logs status stop delete" ;;
esac
while [ $# -gt 0 ] && [ "$1" != "--" ]; do
  key="${1#--}" && key="${key%%=*}"
  if [[ "$1" != -* ]]; then
    [ -z "$name" ] || fail 2 "two names: $name and $1" && name="$1"
  elif [ "$key" = with ]; then
    [[ "$1" == --with=?* ]] || fail 2 "--with needs a value: --with=PATH" && with+=("$1")
  elif [[ " $values " == *" $key "* ]]; then
    [[ "$1" == --*=?* ]] || fail 2 "--$key needs a value: --$key=..." && given[$key]="${1#*=}"
  elif [[ " $switches " == *" $key "* ]]; then
    [ "$1" = "--$key" ] || fail 2 "--$key takes no value" && given[$key]=yes
  else
    fail 2 "unknown option $1" options "$values with $switches"
  fi
  shift
done
[[ "$name" =~ ^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$ ]] || fail 2 "invalid name of a pod: '$name'" \
  expected "lower-case letters, digits and dashes, at most 40" try "launch/tpu_pod.sh $step my-run --project=..."
if [ "${1:-}" = "--" ]; then shift; fi
run=("$@")

# Remembered options, overridden by given ones.
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
[ -n "$project" ] || fail 2 "--project is required" try "--project=..."
[ -n "${option[zone]:-}" ] || fail 2 "--zone is required" try "--zone=us-west4-a"
where=("--project=$project" "--zone=${option[zone]}")
if [ -n "${option[iap]:-}" ]; then ssh_flags+=(--tunnel-through-iap); fi
for key in slices restarts recreate; do
  [[ "${option[$key]}" =~ ^[0-9]+$ ]] || fail 2 "invalid --$key: ${option[$key]} (expected a number)"
done
[ "$slices" -gt 0 ] || fail 2 "invalid --slices: $slices (expected 1 or more)"
if [ -z "$dry_run" ]; then
  command -v gcloud >/dev/null || fail 2 "gcloud is not installed" see "https://cloud.google.com/sdk/docs/install"
  mkdir -p "$memory/t5like-pod"
  for key in "${!option[@]}"; do echo "$key=${option[$key]}"; done | sort >"$memory/options"
fi

trap 'end_streams 2>/dev/null; rm -rf "$scratch"; report_billing' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
case "$step" in
  up) check_command "${run[@]}" && find_files && bring_up ;;
  start) check_command "${run[@]}" && find_files && start ;;
  *)
    [ ${#run[@]} -eq 0 ] || fail 2 "only start and up take a command after --"
    [ ${#with[@]} -eq 0 ] || fail 2 "only start and up take --with: files are sent with the command"
    "$step"
    ;;
esac
