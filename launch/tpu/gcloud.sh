# shellcheck shell=bash
# shellcheck disable=SC2034 # names that tpu_pod.sh and the other parts read
# Calls of gcloud that survive a bad minute, and tell a bad minute from a hopeless request. Sourced by tpu_pod.sh.
#
# T5LIKE_RETRIES (6) is how often a call is tried, T5LIKE_RETRY_SECONDS (10) the first pause, which doubles every time.

# What tpu_pod.sh was told: which pod, and where. `billed` is what this script knows of the pod:
# yes, later, asked (the answer did not come), unknown or nothing.
name="" project="" slices=1 dry_run="" where=() billed="" state=NONE
not_found=44 already_exists=49 # statuses of `call` that its callers expect
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

say() { echo "tpu_pod: $*"; }

# fail STATUS WHAT [KEY VALUE]...: the error of a user, in the form of the library's own.
fail() {
  local status="$1"
  echo "error: $2" >&2
  shift 2
  while [ $# -gt 1 ]; do
    printf '  %-8s %s\n' "$1" "$2" >&2
    shift 2
  done
  exit "$status"
}

quoted() {
  local text
  text="$(printf ' %q' "$@")"
  echo "${text# }"
}

pause() {
  local seconds=$((${T5LIKE_RETRY_SECONDS:-10} * (1 << ($1 - 1))))
  sleep "$((seconds > 300 ? 300 : seconds))" &
  wait $!
}

# verdict MESSAGE: what kind of error it is; nothing for one that may pass.
verdict() {
  local kind pattern
  while IFS='=' read -r kind pattern; do
    if grep -qE "$pattern" <<<"$1"; then
      echo "$kind"
      return
    fi
  done <<'END'
quota=Quota limit|Quota '|QUOTA_EXCEEDED|[Qq]uota.*(exceeded|exhausted)|exceed(s|ed)? quota
not_found=NOT_FOUND|was not found
already_exists=ALREADY_EXISTS|already exists
credentials=UNAUTHENTICATED|gcloud auth login|[Rr]eauthentication
permission=PERMISSION_DENIED|does not have permission|API has not been used
request=INVALID_ARGUMENT|unrecognized arguments|Invalid value|argument --
END
}

# call COMMAND...: its output in $reply. Tries again what may pass, ends the script on what will not.
reply=""
call() {
  local try tries="${T5LIKE_RETRIES:-6}" status message
  reply=""
  if [ -n "$dry_run" ]; then
    echo "+ $(quoted "$@")"
    return
  fi
  for ((try = 1; try <= tries; try++)); do
    status=0
    reply="$("$@" 2>"$scratch/stderr" </dev/null)" || status=$?
    [ "$status" -ne 0 ] || return 0
    message="$(grep -v '^$' "$scratch/stderr" | tail -n 5)"
    case "$(verdict "$message")" in
      not_found) return "$not_found" ;;
      already_exists) return "$already_exists" ;;
      ?*) if [ "$billed" = asked ]; then billed=""; fi ;;& # what was refused is not there
      quota) fail 2 "the project has no quota for this" said "$message" \
        try "a --zone, --accelerator or kind (--spot, --reserved) of which it has" \
        ask "https://console.cloud.google.com/iam-admin/quotas?service=tpu.googleapis.com&project=$project" ;;
      credentials) fail 2 "gcloud has no valid credentials" said "$message" try "gcloud auth login" ;;
      permission) fail 2 "gcloud is not allowed to do this" said "$message" \
        try "the role roles/tpu.admin; gcloud services enable tpu.googleapis.com --project=$project" ;;
      request) fail 2 "gcloud does not take this request" said "$message" command "$(quoted "$@")" ;;
    esac
    say "try $try of $tries failed (status $status): $(tail -n 1 <<<"$message")"
    if [ "$try" -lt "$tries" ]; then pause "$try"; fi
  done
  return 1
}

# The state of the queued resource; NONE where there is none.
queue_state() {
  local status=0
  call gcloud compute tpus queued-resources describe "$name" "${where[@]}" "--format=value(state.state)" || status=$?
  case "$status" in
    0) state="${reply:-NONE}" ;;
    "$not_found") state=NONE ;;
    *) fail 1 "gcloud does not say in which state $name is" said "$(tail -n 3 "$scratch/stderr")" ;;
  esac
  case "$state" in
    ACTIVE | PROVISIONING | SUSPENDING) billed=yes ;;
    ACCEPTED | WAITING_FOR_RESOURCES | CREATING) billed=later ;;
    *) billed="" ;;
  esac
}

# The names of its slices: one is called as the pod, several are numbered.
nodes() {
  local i
  if [ "$slices" -eq 1 ]; then
    echo "$name"
  else
    for ((i = 0; i < slices; i++)); do echo "$name-$i"; done
  fi
}

# count_workers NODE...: how many there must be.
count_workers() {
  local node
  workers=0
  for node in "$@"; do
    call gcloud compute tpus tpu-vm describe "$node" "${where[@]}" "--format=value(networkEndpoints[].ipAddress)" \
      || return
    workers=$((workers + $(tr ';' '\n' <<<"$reply" | grep -c . || true)))
  done
}

ssh_flags=(--quiet --strict-host-key-checking=no)
to_all=(--node=all --worker=all)

# on_all STEP: whether every worker took it, after a few tries. $answers has their lines.
answers=""
on_all() {
  local try tries="${T5LIKE_RETRIES:-6}"
  local -a command=(gcloud compute tpus queued-resources ssh "$name" "${where[@]}" "${ssh_flags[@]}")
  command+=(--ssh-flag=-oConnectTimeout=20 --ssh-flag=-oServerAliveInterval=30)
  if [ -n "$dry_run" ]; then
    call "${command[@]}" "${to_all[@]}" "--command=bash t5like-pod/worker.sh $1"
    return
  fi
  # shellcheck disable=SC2046 # the names are words
  count_workers $(nodes) || return
  for ((try = 1; try <= tries; try++)); do
    "${command[@]}" "${to_all[@]}" "--command=bash t5like-pod/worker.sh $1" \
      >"$scratch/answers" 2>"$scratch/stderr" </dev/null || true
    answers="$(grep -o "^t5like-pod: .*" "$scratch/answers" | sort -u || true)"
    if [ "$(grep -vc " $1 failed" <<<"$answers")" -eq "$workers" ] && [ -n "$answers" ]; then return; fi
    say "$1: $(grep -c . <<<"$answers") of $workers workers answered (try $try of $tries)"
    grep " $1 failed" <<<"$answers" || true
    if [ "$try" -lt "$tries" ]; then pause "$try"; fi
  done
  return 1
}

# name_missing: asks the workers one by one who is there.
name_missing() {
  local node=0 worker slice
  for slice in $(nodes); do
    count_workers "$slice" || continue
    for ((worker = 0; worker < workers; worker++)); do
      gcloud compute tpus queued-resources ssh "$name" "${where[@]}" "${ssh_flags[@]}" \
        --ssh-flag=-oConnectTimeout=20 "--node=$node" "--worker=$worker" "--command=echo here" 2>/dev/null </dev/null \
        | grep -q here || echo "worker $worker of $slice"
    done
    node=$((node + 1))
  done
}
