# shellcheck shell=bash
# shellcheck disable=SC2034 # variables that tpu_pod.sh and the other parts read
# Calls of gcloud that retry transient errors and fail on permanent ones. Sourced by tpu_pod.sh.
#
# T5LIKE_RETRIES (6) is the number of attempts, T5LIKE_RETRY_SECONDS (10) the first pause, which doubles every time.

# Name and location of the pod. `billed` is its billing state as far as known: yes, later, asked (a request without an
# answer), unknown or empty.
name="" project="" slices=1 dry_run="" where=() billed="" state=NONE
not_found=44 already_exists=49 # statuses of `call` that its callers expect
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

say() { echo "tpu_pod: $*"; }

# fail STATUS WHAT [KEY VALUE]...: reports a user error in the format of the library.
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

# verdict MESSAGE: prints the kind of a permanent error; nothing for a transient one.
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

# call COMMAND...: stores its output in $reply. Retries transient errors, ends the script on permanent ones.
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
      ?*) if [ "$billed" = asked ]; then billed=""; fi ;;& # a rejected request creates nothing
      quota) fail 2 "the project has no quota for this" message "$message" \
        try "a --zone, --accelerator or provisioning model (--spot, --reserved) with quota" \
        or "request: https://console.cloud.google.com/iam-admin/quotas?service=tpu.googleapis.com&project=$project" ;;
      credentials) fail 2 "gcloud has no valid credentials" message "$message" try "gcloud auth login" ;;
      permission) fail 2 "gcloud lacks permission" message "$message" \
        try "the role roles/tpu.admin; gcloud services enable tpu.googleapis.com --project=$project" ;;
      request) fail 2 "gcloud rejected the request" message "$message" command "$(quoted "$@")" ;;
    esac
    say "attempt $try of $tries failed (status $status): $(tail -n 1 <<<"$message")"
    if [ "$try" -lt "$tries" ]; then pause "$try"; fi
  done
  return 1
}

# Stores the state of the queued resource in $state; NONE if there is none.
queue_state() {
  local status=0
  call gcloud compute tpus queued-resources describe "$name" "${where[@]}" "--format=value(state.state)" || status=$?
  case "$status" in
    0) state="${reply:-NONE}" ;;
    "$not_found") state=NONE ;;
    *) fail 1 "cannot determine the state of $name" message "$(tail -n 3 "$scratch/stderr")" ;;
  esac
  case "$state" in
    ACTIVE | PROVISIONING | SUSPENDING) billed=yes ;;
    ACCEPTED | WAITING_FOR_RESOURCES | CREATING) billed=later ;;
    *) billed="" ;;
  esac
}

# The names of the slices: that of the pod, numbered if there are several.
nodes() {
  local i
  if [ "$slices" -eq 1 ]; then
    echo "$name"
  else
    for ((i = 0; i < slices; i++)); do echo "$name-$i"; done
  fi
}

# count_workers NODE...: stores the expected number of workers in $workers.
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

# on_all STEP: runs a step on all workers, with retries; succeeds if every worker did. $answers has their lines.
answers=""
on_all() {
  local try tries="${T5LIKE_RETRIES:-6}"
  local -a command=(gcloud compute tpus queued-resources ssh "$name" "${where[@]}" "${ssh_flags[@]}")
  command+=(--ssh-flag=-oConnectTimeout=20 --ssh-flag=-oServerAliveInterval=30)
  if [ -n "$dry_run" ]; then
    call "${command[@]}" "${to_all[@]}" "--command=bash t5like-pod/worker.sh $1"
    return
  fi
  # shellcheck disable=SC2046 # names without spaces
  count_workers $(nodes) || return
  for ((try = 1; try <= tries; try++)); do
    "${command[@]}" "${to_all[@]}" "--command=bash t5like-pod/worker.sh $1" \
      >"$scratch/answers" 2>"$scratch/stderr" </dev/null || true
    answers="$(grep -o "^t5like-pod: .*" "$scratch/answers" | sort -u || true)"
    if [ "$(grep -vc " $1 failed" <<<"$answers")" -eq "$workers" ] && [ -n "$answers" ]; then return; fi
    say "$1: $(grep -c . <<<"$answers") of $workers workers responded (attempt $try of $tries)"
    grep " $1 failed" <<<"$answers" || true
    if [ "$try" -lt "$tries" ]; then pause "$try"; fi
  done
  return 1
}

# unreachable_workers: prints the workers that do not respond, trying them one by one.
unreachable_workers() {
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
