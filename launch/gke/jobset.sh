#!/usr/bin/env bash
# Run t5like on a GKE cluster that kubectl is connected to, as a JobSet (launch/gke/tpu.yaml, launch/gke/gpu.yaml).
#
# usage: launch/gke/jobset.sh STEP NAME [OPTION]... [-- t5like train ...]
#
# examples:
#   launch/gke/jobset.sh submit demo --image=IMAGE --accelerator=v5e --topology=4x4 --slices=2 \
#       -- t5like train --gin_file=my_run.gin --gin.MODEL_DIR=gs://bucket/run
#   launch/gke/jobset.sh submit demo --image=IMAGE --accelerator=nvidia-h100-80gb --nodes=4 -- t5like train ...
#
#   render   print the manifest              status   print the JobSet and its Pods
#   submit   send it to the cluster          logs     follow worker 0, and errors of any worker
#                                            delete   delete the run; the cluster and its nodes stay
#
# Gin files and Python modules of the current folder that the command uses, and files and folders of --with, are sent in
# a ConfigMap (at most 1 MiB); the command finds them under the same relative paths.
#
# options, with their defaults:
#   --image=IMAGE                required; built from launch/Dockerfile and pushed to a registry
#   --accelerator=v5e            required; v4, v5e, v5p, v6e, tpu7x, or a GPU by its GKE name (nvidia-h100-80gb)
#   --topology=4x4 --slices=1    of TPUs; --topology is required; --chips_per_host=4 if hosts differ
#   --nodes=1 --gpus=8           of GPUs
#   --with=PATH                  also send this file or folder of the current folder; may be repeated
#   --workdir=/root              the folder in the image where the command runs, if files are sent
#   --in_image                   all files are in the image (in its working directory): check and send nothing
#   --spot, --reservation=R      use only such nodes (default: any that fit)
#   --service_account=default    of Kubernetes, with access to the bucket
#   --namespace=default
#   --restarts=10                restarts of a crashed trainer within its Pod
#   --max_restarts=100           restarts of all Pods after a lost node
#   --dry_run                    print the commands without running them
#   --help                       print this text
set -euo pipefail
# shellcheck source=launch/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/../help.sh"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

# fail WHAT [KEY VALUE]...
fail() {
  echo "error: $1" >&2
  shift
  while [ $# -gt 1 ]; do
    printf '  %-8s %s\n' "$1" "$2" >&2
    shift 2
  done
  exit 2
}

declare -A option=([slices]=1 [nodes]=1 [gpus]=8 [chips_per_host]=4 [service_account]=default [namespace]=default
  [restarts]=10 [max_restarts]=100 [workdir]=/root [image]="" [accelerator]="" [topology]="" [reservation]=""
  [spot]="" [dry_run]="" [in_image]="")
step="${1:-}" name="" with=() files=()
case "$step" in
  render | submit | status | logs | delete) shift ;;
  "") fail "missing step" steps "render submit status logs delete" try "launch/gke/jobset.sh --help" ;;
  *) fail "unknown step '$step'" steps "render submit status logs delete" ;;
esac
while [ $# -gt 0 ] && [ "$1" != "--" ]; do
  key="${1#--}" && key="${key%%=*}"
  case "$1" in
    --with=?*) with+=("$1") ;;
    --spot | --dry_run | --in_image) option[$key]=yes ;;
    --*=?*)
      [ -n "${option[$key]+known}" ] || fail "unknown option --$key" options "with ${!option[*]}"
      option[$key]="${1#*=}"
      ;;
    -*) fail "invalid option: $1" options "--KEY=VALUE of ${!option[*]}" ;;
    *) [ -z "$name" ] || fail "two names: $name and $1" && name="$1" ;;
  esac
  shift
done
[[ "$name" =~ ^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$ ]] || fail "invalid name of a run: '$name'" \
  expected "lower-case letters, digits and dashes, at most 40" try "launch/gke/jobset.sh $step my-run ..."
if [ "${1:-}" = "--" ]; then shift; fi
run=("$@")
for key in slices nodes gpus chips_per_host restarts max_restarts; do
  [[ "${option[$key]}" =~ ^[0-9]+$ ]] || fail "invalid --$key: ${option[$key]} (expected a number)"
done
for key in slices nodes gpus chips_per_host; do
  [ "${option[$key]}" -gt 0 ] || fail "invalid --$key: ${option[$key]} (expected 1 or more)"
done
where=("--namespace=${option[namespace]}")
selector="jobset.sigs.k8s.io/jobset-name=$name"

# A JSON string, which is also YAML.
json() {
  local word="${1//\\/\\\\}"
  echo "\"${word//\"/\\\"}\""
}

# The arguments as a JSON list.
arguments() {
  local word text=""
  local -a words=("${run[@]:1}")
  if [ "${words[0]:-}" = train ] && [ "${option[restarts]}" -gt 0 ] && [[ " ${words[*]} " != *" --restarts"* ]]; then
    words=(train "--restarts=${option[restarts]}" "${words[@]:1}")
  fi
  for word in "${words[@]}"; do
    text+=", $(json "$word")"
  done
  echo "[${text#, }]"
}

# Sets the template, the number of hosts and the chips per host, of a TPU slice or of GPU nodes.
shape() {
  local side chips=1
  hosts="${option[nodes]}" chips_each="${option[gpus]}" file="$here/gpu.yaml" label="${option[accelerator]}"
  case "$label" in
    nvidia-*) return ;;
    v4) label=tpu-v4-podslice ;;
    v5e | v5litepod) label=tpu-v5-lite-podslice ;;
    v5p) label=tpu-v5p-slice ;;
    v6e) label=tpu-v6e-slice ;;
    tpu7x) label=tpu7x ;;
    *) fail "unknown accelerator '$label'" expected "v4, v5e, v5p, v6e, tpu7x, or nvidia-..." ;;
  esac
  file="$here/tpu.yaml"
  [[ "${option[topology]}" =~ ^[0-9]+x[0-9]+(x[0-9]+)?$ ]] || fail "invalid --topology: '${option[topology]}'" \
    expected "4x4 for v5e and v6e, 2x2x4 for v4, v5p and tpu7x"
  for side in ${option[topology]//x/ }; do chips=$((chips * side)); done
  chips_each="${option[chips_per_host]}"
  if [ "$chips" -lt "$chips_each" ]; then chips_each="$chips"; fi
  [ $((chips % chips_each)) -eq 0 ] || fail "$chips chips are not divisible by $chips_each chips per host"
  hosts=$((chips / chips_each))
}

# Rejects a command that would fail in the cluster.
check_command() {
  local argument
  [ ${#run[@]} -gt 0 ] || fail "missing command after --" try "-- t5like train ..."
  [ "${run[0]}" = t5like ] || fail "invalid command: ${run[0]}" expected "t5like, the entry point of the image"
  [ -n "${option[image]}" ] || fail "--image is required" \
    try "--image=REGION-docker.pkg.dev/PROJECT/REPOSITORY/t5like:TAG"
  for argument in "${run[@]}"; do
    case "$argument" in
      --gin.MODEL_DIR=gs://* | --gin.MODEL_DIR=[\'\"]gs://*) : ;;
      --gin.MODEL_DIR=*) fail "the checkpoints would be lost with the Pod: $argument is a folder in it" \
        try "--gin.MODEL_DIR=gs://bucket/$name" ;;
    esac
  done
}

# Stores the local files that the command needs in $files, and the name of their ConfigMap, which depends on them.
find_files() {
  local python="${PYTHON:-python3}" found file
  if [ -n "${option[in_image]}" ]; then
    [ ${#with[@]} -eq 0 ] || fail "--with and --in_image exclude each other" try "only one of them"
    return
  fi
  [[ "${option[workdir]}" == /* ]] || fail "invalid --workdir: ${option[workdir]} (expected an absolute path)"
  command -v "$python" >/dev/null || fail "$python is not installed" try "PYTHON=/path/to/python3"
  found="$("$python" -I -S "$here/../files_of_command.py" "${with[@]}" --limit=$((1 << 20)) \
    --too_large="put them into the image (and add --in_image) or into a bucket (gs://...)" -- "${run[@]}")" || exit
  [ -n "$found" ] || return 0
  mapfile -t files <<<"$found"
  for file in "${files[@]}"; do
    [[ "$file" != *:* ]] || fail "Kubernetes cannot mount a file with a colon in its name: $file" try "rename the file"
  done
  digest="$({ printf '%s\n' "${files[@]}" && cat -- "${files[@]}"; } | sha256sum | cut -c1-12)"
  config_map="$name-files-$digest"
}

# The files as keys of an immutable ConfigMap: changed files need another ConfigMap and another JobSet, which Kubernetes
# rejects while the run exists. Otherwise a restarted Pod would resume the run with other files.
render_files() {
  local i
  printf '%s\n' "apiVersion: v1" "kind: ConfigMap" "metadata:" "  name: $config_map" "  labels: {t5like-run: $name}" \
    "immutable: true" "binaryData:"
  for i in "${!files[@]}"; do echo "  file-$i: \"$(base64 <"${files[$i]}" | tr -d '\n')\""; done
}

render() {
  if [ ${#files[@]} -gt 0 ]; then render_files && echo "---"; fi
  render_run
}

render_run() {
  local hosts chips_each file label node_label="" text i mounts="" workdir="${option[workdir]%/}"
  local indent="                    " # of the lines of volumeMounts
  shape
  if [ -n "${option[spot]}" ]; then node_label='cloud.google.com/gke-spot: "true"'; fi
  if [ -n "${option[reservation]}" ]; then node_label="cloud.google.com/reservation-name: ${option[reservation]}"; fi
  text="$(grep -v '^ *#' "$file")"
  if [ -z "$node_label" ]; then text="$(grep -v '@SELECTOR@' <<<"$text")"; fi
  if [ ${#files[@]} -eq 0 ]; then text="$(grep -vE '@(WORKDIR|MOUNTS|FILES)@' <<<"$text")"; fi
  for i in "${!files[@]}"; do
    mounts+="${mounts:+$'\n'$indent}- {name: files, mountPath: $(json "$workdir/${files[$i]}"), subPath: file-$i}"
  done
  text="${text//@NAME@/"$name"}" text="${text//@IMAGE@/"${option[image]}"}"
  text="${text//@SLICES@/"${option[slices]}"}" text="${text//@HOSTS@/"$hosts"}" text="${text//@CHIPS@/"$chips_each"}"
  text="${text//@ACCELERATOR@/"$label"}" text="${text//@TOPOLOGY@/"${option[topology]}"}"
  text="${text//@SELECTOR@/"$node_label"}" text="${text//@SERVICE_ACCOUNT@/"${option[service_account]}"}"
  text="${text//@MAX_RESTARTS@/"${option[max_restarts]}"}"
  text="${text//@FILES@/"${config_map:-}"}" text="${text//@WORKDIR@/"$(json "${workdir:-/}")"}"
  text="${text//@MOUNTS@/"$mounts"}"
  echo "${text//@ARGUMENTS@/"$(arguments)"}"
}

# call COMMAND...: with its stdin; retried while the cluster cannot be reached.
call() {
  local try tries="${T5LIKE_RETRIES:-4}" message input=""
  if [ -n "${option[dry_run]}" ]; then
    echo "+$(printf ' %q' "$@")"
    return
  fi
  command -v kubectl >/dev/null || fail "kubectl is not installed" see "https://kubernetes.io/docs/tasks/tools"
  if [ ! -t 0 ]; then input="$(cat)"; fi
  for ((try = 1; try <= tries; try++)); do
    if message="$("$@" 2>&1 <<<"$input")"; then
      echo "$message"
      return
    fi
    case "$message" in
      *"no matches for kind \"JobSet\""*) fail "JobSet is not installed on the cluster" message "$message" \
        see "https://jobset.sigs.k8s.io/docs/installation" ;;
      *Forbidden* | *Unauthorized* | *"must be logged in"*) fail "the cluster denied access" message "$message" \
        try "gcloud container clusters get-credentials CLUSTER --location=... --project=..." ;;
      *"connection to the server"* | *"i/o timeout"* | *"TLS handshake"* | *"connection refused"* | *"etcdserver"*)
        echo "jobset: attempt $try of $tries failed: $message" >&2
        sleep $((${T5LIKE_RETRY_SECONDS:-5} * try))
        ;;
      *) fail "kubectl failed" message "$message" command "$*" ;;
    esac
  done
  echo "error: cannot reach the cluster" >&2
  exit 1
}

submit() {
  local manifest
  manifest="$(render_run)"
  if [ -n "${option[dry_run]}" ]; then render; fi
  if [ ${#files[@]} -gt 0 ]; then
    printf '%s\n' "sending ${#files[@]} files of $PWD:" "${files[@]/#/  }"
    # Server-side: the client would store a copy in an annotation, which is limited to 256 KiB.
    call kubectl apply --server-side --filename=- "${where[@]}" <<<"$(render_files)"
  fi
  call kubectl apply --filename=- "${where[@]}" <<<"$manifest"
  echo "follow it   launch/gke/jobset.sh logs $name"
  echo "delete it   launch/gke/jobset.sh delete $name"
}

status() {
  call kubectl get jobset "$name" "${where[@]}" </dev/null
  call kubectl get pods "--selector=$selector" "${where[@]}" --output=wide </dev/null
}

logs() {
  local errors='^\[[^]]*\] (error:|Traceback|[A-Za-z_.]*(Error|Exception):)'
  local first="$selector,jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0"
  local -a follow=(kubectl logs --follow --prefix --max-log-requests=1024 "${where[@]}")
  if [ -n "${option[dry_run]}" ]; then
    call "${follow[@]}" "--selector=$first" --tail=-1
    call "${follow[@]}" "--selector=$selector" --tail=100
    return
  fi
  set -m # a process group, so that all of it can be ended
  "${follow[@]}" "--selector=$selector" --tail=100 2>/dev/null | grep --line-buffered -A 12 -E "$errors" &
  set +m
  # shellcheck disable=SC2064 # expand the pid now
  trap "kill -- -$(jobs -p) 2>/dev/null || true" EXIT
  "${follow[@]}" "--selector=$first" --tail=-1
}

delete() {
  call kubectl delete jobset "$name" "${where[@]}" --ignore-not-found --wait </dev/null
  call kubectl delete configmap "--selector=t5like-run=$name" "${where[@]}" --ignore-not-found </dev/null
  echo "the run is deleted; STILL BILLED: the cluster, and nodes that no autoscaler removes:"
  echo "  see  gcloud container node-pools list --cluster=... --location=... --project=..."
}

case "$step" in render | submit) check_command && find_files ;; esac
"$step"
