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
#   render   print the manifest              status   the JobSet and its Pods
#   submit   send it to the cluster          logs     of worker 0, and errors of any, until the end
#                                            delete   the run; the cluster and its nodes stay
#
# The gin files and Python modules of the current folder that the command names travel in a ConfigMap (1 MiB at most),
# and the command finds them under the same relative paths; so do files and folders of --with.
#
# options, with their defaults:
#   --image=IMAGE                required; made of launch/Dockerfile and pushed where the cluster finds it
#   --accelerator=v5e            required; v4, v5e, v5p, v6e, tpu7x, or a GPU by its GKE name (nvidia-h100-80gb)
#   --topology=4x4 --slices=1    of TPUs; --topology is required, --chips_per_host=4 is for hosts with another number
#   --nodes=1 --gpus=8           of GPUs
#   --with=PATH                  also send this file or folder of the current folder; may be repeated
#   --workdir=/root              the folder in the image where the command runs, if files are sent
#   --in_image                   the image has all the files (in its working directory): check and send nothing
#   --spot, --reservation=R      on such nodes only (default: on any that fit)
#   --service_account=default    of Kubernetes, with access to the bucket
#   --namespace=default
#   --restarts=10                in place, after a crash
#   --max_restarts=100           of all Pods, after a lost node
#   --dry_run                    print the commands, do nothing
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
  "") fail "missing: a step" steps "render submit status logs delete" try "launch/gke/jobset.sh --help" ;;
  *) fail "what to do? '$step' is no step" steps "render submit status logs delete" ;;
esac
while [ $# -gt 0 ] && [ "$1" != "--" ]; do
  key="${1#--}" && key="${key%%=*}"
  case "$1" in
    --with=?*) with+=("$1") ;;
    --spot | --dry_run | --in_image) option[$key]=yes ;;
    --*=?*)
      [ -n "${option[$key]+known}" ] || fail "there is no option --$key" options "with ${!option[*]}"
      option[$key]="${1#*=}"
      ;;
    -*) fail "what does $1 mean?" options "--KEY=VALUE of ${!option[*]}" ;;
    *) [ -z "$name" ] || fail "which run? $name or $1" && name="$1" ;;
  esac
  shift
done
[[ "$name" =~ ^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$ ]] || fail "'$name' cannot be the name of a run" \
  expected "lower-case letters, digits and dashes, 40 at most" try "launch/gke/jobset.sh $step my-run ..."
if [ "${1:-}" = "--" ]; then shift; fi
run=("$@")
for key in slices nodes gpus chips_per_host restarts max_restarts; do
  [[ "${option[$key]}" =~ ^[0-9]+$ ]] || fail "--$key=${option[$key]} is not a number"
done
where=("--namespace=${option[namespace]}")
mine="jobset.sigs.k8s.io/jobset-name=$name"

# A string of JSON, which is YAML too.
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

# Sets the shape of a TPU slice, or of the GPU nodes: which file, how many hosts, how many chips on each.
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
    *) fail "which accelerator? '$label' is none" expected "v4, v5e, v5p, v6e, tpu7x, or nvidia-..." ;;
  esac
  file="$here/tpu.yaml"
  [[ "${option[topology]}" =~ ^[0-9]+x[0-9]+(x[0-9]+)?$ ]] || fail "--topology='${option[topology]}' is none" \
    expected "4x4 for v5e and v6e, 2x2x4 for v4, v5p and tpu7x"
  for side in ${option[topology]//x/ }; do chips=$((chips * side)); done
  chips_each="${option[chips_per_host]}"
  if [ "$chips" -lt "$chips_each" ]; then chips_each="$chips"; fi
  [ $((chips % chips_each)) -eq 0 ] || fail "$chips chips cannot be split over hosts of $chips_each"
  hosts=$((chips / chips_each))
}

# Refuses a command that would fail in the cluster.
check_command() {
  local argument
  [ ${#run[@]} -gt 0 ] || fail "what to run? nothing comes after --" try "-- t5like train ..."
  [ "${run[0]}" = t5like ] || fail "the command is ${run[0]}" expected "t5like, which is what the image holds"
  [ -n "${option[image]}" ] || fail "which image?" try "--image=REGION-docker.pkg.dev/PROJECT/REPOSITORY/t5like:TAG"
  for argument in "${run[@]}"; do
    case "$argument" in
      --gin.MODEL_DIR=gs://* | --gin.MODEL_DIR=[\'\"]gs://*) : ;;
      --gin.MODEL_DIR=*) fail "the checkpoints would be lost with the Pod: $argument is a folder in it" \
        try "--gin.MODEL_DIR=gs://bucket/$name" ;;
    esac
  done
}

# Finds the local files that the command needs, in $files, and their ConfigMap's name, which changes with them.
find_files() {
  local python="${PYTHON:-python3}" found file
  if [ -n "${option[in_image]}" ]; then
    [ ${#with[@]} -eq 0 ] || fail "--with sends files, --in_image none" try "one of them"
    return
  fi
  [[ "${option[workdir]}" == /* ]] || fail "invalid --workdir: ${option[workdir]} (expected an absolute path)"
  command -v "$python" >/dev/null || fail "$python is not installed" try "PYTHON=/path/to/python3"
  found="$("$python" -I -S "$here/../files_of_command.py" "${with[@]}" --limit=$((1 << 20)) \
    --too_large="put them into the image (and add --in_image) or into a bucket (gs://...)" -- "${run[@]}")" || exit
  [ -n "$found" ] || return 0
  mapfile -t files <<<"$found"
  for file in "${files[@]}"; do
    [[ "$file" != *:* ]] || fail "Kubernetes cannot mount a file whose name has a colon: $file" try "another name"
  done
  digest="$({ printf '%s\n' "${files[@]}" && cat -- "${files[@]}"; } | sha256sum | cut -c1-12)"
  config_map="$name-files-$digest"
}

# The files as keys of a ConfigMap. It never changes: other files make another one, and another JobSet, which Kubernetes
# refuses while the run has its name. Otherwise a restarted Pod would continue the run with other files.
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
  local hosts chips_each file label selector="" text i mounts="" workdir="${option[workdir]%/}"
  local indent="                    " # of the lines of volumeMounts
  shape
  if [ -n "${option[spot]}" ]; then selector='cloud.google.com/gke-spot: "true"'; fi
  if [ -n "${option[reservation]}" ]; then selector="cloud.google.com/reservation-name: ${option[reservation]}"; fi
  text="$(grep -v '^ *#' "$file")"
  if [ -z "$selector" ]; then text="$(grep -v '@SELECTOR@' <<<"$text")"; fi
  if [ ${#files[@]} -eq 0 ]; then text="$(grep -vE '@(WORKDIR|MOUNTS|FILES)@' <<<"$text")"; fi
  for i in "${!files[@]}"; do
    mounts+="${mounts:+$'\n'$indent}- {name: files, mountPath: $(json "$workdir/${files[$i]}"), subPath: file-$i}"
  done
  text="${text//@NAME@/"$name"}" text="${text//@IMAGE@/"${option[image]}"}"
  text="${text//@SLICES@/"${option[slices]}"}" text="${text//@HOSTS@/"$hosts"}" text="${text//@CHIPS@/"$chips_each"}"
  text="${text//@ACCELERATOR@/"$label"}" text="${text//@TOPOLOGY@/"${option[topology]}"}"
  text="${text//@SELECTOR@/"$selector"}" text="${text//@SERVICE_ACCOUNT@/"${option[service_account]}"}"
  text="${text//@MAX_RESTARTS@/"${option[max_restarts]}"}"
  text="${text//@FILES@/"${config_map:-}"}" text="${text//@WORKDIR@/"$(json "${workdir:-/}")"}"
  text="${text//@MOUNTS@/"$mounts"}"
  echo "${text//@ARGUMENTS@/"$(arguments)"}"
}

# call COMMAND...: with its standard input; tried again while the cluster cannot be reached.
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
      *"no matches for kind \"JobSet\""*) fail "the cluster does not know JobSets" said "$message" \
        see "https://jobset.sigs.k8s.io/docs/installation" ;;
      *Forbidden* | *Unauthorized* | *"must be logged in"*) fail "the cluster refuses" said "$message" \
        try "gcloud container clusters get-credentials CLUSTER --location=... --project=..." ;;
      *"connection to the server"* | *"i/o timeout"* | *"TLS handshake"* | *"connection refused"* | *"etcdserver"*)
        echo "jobset: try $try of $tries failed: $message" >&2
        sleep $((${T5LIKE_RETRY_SECONDS:-5} * try))
        ;;
      *) fail "kubectl failed" said "$message" command "$*" ;;
    esac
  done
  echo "error: the cluster cannot be reached" >&2
  exit 1
}

submit() {
  local manifest
  manifest="$(render_run)"
  if [ -n "${option[dry_run]}" ]; then render; fi
  if [ ${#files[@]} -gt 0 ]; then
    printf '%s\n' "${#files[@]} files of $PWD go along:" "${files[@]/#/  }"
    # By the server: the client would store a copy in an annotation, which takes 256 KiB at most.
    call kubectl apply --server-side --filename=- "${where[@]}" <<<"$(render_files)"
  fi
  call kubectl apply --filename=- "${where[@]}" <<<"$manifest"
  echo "watch it   launch/gke/jobset.sh logs $name"
  echo "end it     launch/gke/jobset.sh delete $name"
}

status() {
  call kubectl get jobset "$name" "${where[@]}" </dev/null
  call kubectl get pods "--selector=$mine" "${where[@]}" --output=wide </dev/null
}

logs() {
  local errors='^\[[^]]*\] (error:|Traceback|[A-Za-z_.]*(Error|Exception):)'
  local first="$mine,jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0"
  local -a follow=(kubectl logs --follow --prefix --max-log-requests=1024 "${where[@]}")
  if [ -n "${option[dry_run]}" ]; then
    call "${follow[@]}" "--selector=$first" --tail=-1
    call "${follow[@]}" "--selector=$mine" --tail=100
    return
  fi
  set -m # a group of its own, ended as one
  "${follow[@]}" "--selector=$mine" --tail=100 2>/dev/null | grep --line-buffered -A 12 -E "$errors" &
  set +m
  # shellcheck disable=SC2064 # the pid of now
  trap "kill -- -$(jobs -p) 2>/dev/null || true" EXIT
  "${follow[@]}" "--selector=$first" --tail=-1
}

delete() {
  call kubectl delete jobset "$name" "${where[@]}" --ignore-not-found --wait </dev/null
  call kubectl delete configmap "--selector=t5like-run=$name" "${where[@]}" --ignore-not-found </dev/null
  echo "the run is gone; STILL BILLED are the cluster and those of its nodes that no autoscaler takes away:"
  echo "  look  gcloud container node-pools list --cluster=... --location=... --project=..."
}

case "$step" in render | submit) check_command && find_files ;; esac
"$step"
