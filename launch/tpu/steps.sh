# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034 # names that tpu_pod.sh and gcloud.sh set and read
# The steps of a run on a TPU pod, each of which can be taken alone and again. Sourced by tpu_pod.sh.

preempted=75 # the status of a step that found its pod gone

# On the way out, whatever happened: what is still paid for, and how to end that.
tell_bill() {
  local what="$name (${option[accelerator]:-${option[type]:-} ${option[topology]:-}}, ${option[zone]:-}, $project)"
  [ -z "$dry_run" ] || return 0
  case "$billed" in
    yes) echo "STILL BILLED: $what" ;;
    later) echo "WILL BE BILLED once it is granted: $what" ;;
    asked | unknown) echo "MAY STILL BE BILLED: $what" ;;
    *) return 0 ;;
  esac
  echo "  delete it  launch/tpu_pod.sh delete $name --project=$project --zone=${option[zone]}"
}

# Refuses a command that would lose its work with the pod.
check_command() {
  local argument
  [ $# -gt 0 ] || fail 2 "what to run? nothing comes after --" try "-- t5like train ... --gin.MODEL_DIR=gs://..."
  [ "$1" = "t5like" ] || fail 2 "the command is $1" expected "t5like, which is what is installed on the workers"
  for argument in "$@"; do
    case "$argument" in
      --gin.MODEL_DIR=gs://* | --gin.MODEL_DIR="'gs://"* | --gin.MODEL_DIR='"gs://'*) return 0 ;;
      --gin.MODEL_DIR=*) fail 2 "the checkpoints would be lost with the pod: $argument is a folder of each worker" \
        try "--gin.MODEL_DIR=gs://bucket/$name" ;;
    esac
  done
  say "note: MODEL_DIR is not among the arguments; in the gin file it must be a gs:// path"
}

default_runtime() {
  case "${option[accelerator]:-${option[type]:-}}" in
    v2* | v3* | v4*) echo tpu-ubuntu2204-base ;;
    v5litepod* | v5e*) echo v2-alpha-tpuv5-lite ;;
    v5p*) echo v2-alpha-tpuv5 ;;
    v6e*) echo v2-alpha-tpuv6e ;;
    *) fail 2 "no image is known for '${option[accelerator]:-${option[type]:-}}'" try "--runtime=..." \
      list "gcloud compute tpus tpu-vm versions list --zone=${option[zone]}" ;;
  esac
}

# The words of the request for the pod, in $request.
make_request() {
  local runtime key
  [ -n "${option[accelerator]:-}" ] || { [ -n "${option[type]:-}" ] && [ -n "${option[topology]:-}" ]; } \
    || fail 2 "which TPU?" try "--accelerator=v5litepod-16, or --type=v5p --topology=2x2x4"
  runtime="${option[runtime]:-$(default_runtime)}"
  request=(gcloud)
  # A named reservation is only known to the alpha commands.
  if [ -n "${option[reservation]:-}" ]; then request+=(alpha); fi
  request+=(compute tpus queued-resources create "$name" "${where[@]}" "--runtime-version=$runtime")
  if [ -n "${option[accelerator]:-}" ]; then
    request+=("--accelerator-type=${option[accelerator]}")
  else
    request+=("--type=${option[type]}" "--topology=${option[topology]}")
  fi
  if [ "$slices" -eq 1 ]; then
    request+=("--node-id=$name")
  else
    request+=("--node-count=$slices" "--node-prefix=$name")
  fi
  for key in spot reserved internal_ips; do
    if [ -n "${option[$key]:-}" ]; then request+=("--${key//_/-}"); fi
  done
  for key in reservation network subnetwork service_account; do
    if [ -n "${option[$key]:-}" ]; then request+=("--${key//_/-}=${option[$key]}"); fi
  done
  if [ -n "${option[valid_until]:-}" ]; then request+=("--valid-until-duration=${option[valid_until]}"); fi
}

create() {
  local request=() status=0
  make_request
  queue_state
  case "$state" in
    FAILED | SUSPENDED | SUSPENDING | DELETING)
      # Its TPUs are gone, but it keeps its name and its share of the quota.
      say "$name is $state: deleting it to ask again"
      delete
      state=NONE
      ;;
  esac
  if [ "$state" = NONE ]; then
    if [ -z "$dry_run" ]; then billed=asked; fi
    call "${request[@]}" || status=$?
    case "$status" in
      0 | "$already_exists") : ;;
      *) fail 1 "the pod could not be asked for" said "$(tail -n 3 "$scratch/stderr")" ;;
    esac
  fi
  if [ -z "$dry_run" ]; then wait_for_pod; fi
}

wait_for_pod() {
  local before="" why absent=0
  while true; do
    queue_state
    if [ "$state" = NONE ]; then absent=$((absent + 1)); fi # a request is listed a moment after it was made
    if [ "$state" != "$before" ]; then say "$name is $state ($(date -u +%H:%M:%S) UTC)"; fi
    before="$state"
    case "$state" in
      ACTIVE) return ;;
      FAILED | SUSPENDED | NONE)
        if [ "$state" = NONE ] && [ "$absent" -lt 5 ]; then sleep "${T5LIKE_RETRY_SECONDS:-10}" && continue; fi
        call gcloud compute tpus queued-resources describe "$name" "${where[@]}" \
          "--format=value(state.failedData.error.message)" || true
        why="${reply:-no reason given}"
        if [ "$state" != NONE ]; then delete; fi # a request that failed still counts against the quota
        case "$(verdict "$why")" in
          quota) fail 2 "the project has no quota for this" said "$why" try "another --zone or --accelerator" ;;
          *) fail 1 "the pod was not granted ($state)" said "$why" try "the same command again, or another --zone" ;;
        esac
        ;;
    esac
    sleep "${T5LIKE_POLL_SECONDS:-30}" &
    wait $!
  done
}

# The package that all workers get: made once, so that the pod after a preemption gets the same.
bundle() {
  local from="${option[from]:-}" box="$memory/t5like-pod" python="${PYTHON:-python3}"
  case "$from" in
    git+*@*) option[source]="$from" ;;
    git+*) fail 2 "--from=$from may be another version tomorrow" try "--from=$from@REVISION" ;;
    *.whl | *.tar.gz) option[source]="$(basename "$from")" ;;
    "") option[source]="a wheel of this checkout" ;;
    *) fail 2 "--from=$from is no package" expected "a .whl or .tar.gz file, or git+URL@REVISION" ;;
  esac
  if [ -n "$dry_run" ]; then
    if [ -z "$from" ]; then echo "+ $python -m pip wheel --no-deps --wheel-dir $(quoted "$box" "${launch%/*}")"; fi
    return
  fi
  mkdir -p "$box"
  rm -f "$box"/*.whl "$box"/*.tar.gz
  cp "$launch/tpu/worker.sh" "$box/"
  case "$from" in
    git+*) : ;;
    "")
      build_wheel "$box" "$python"
      option[source]="$(cd "$box" && ls t5like-*.whl)"
      ;;
    *) [ -e "$from" ] || fail 2 "there is no file $from" && cp "$from" "$box/" ;;
  esac
  echo "${option[source]}" >"$box/source"
  { cat "$box/source" "$box"/*.whl "$box"/*.tar.gz 2>/dev/null || true; } | sha256sum | cut -c1-12 >"$box/digest"
  if [ -n "${option[as_of]:-}" ]; then
    echo "${option[as_of]}" >"$box/as_of"
  elif [ ! -e "$box/as_of" ]; then
    date -u +%Y-%m-%dT%H:%M:%SZ >"$box/as_of"
  fi
  say "installing ${option[source]} with the packages of $(cat "$box/as_of")"
}

# Built from a copy: an old build/ folder in the checkout would put files into the wheel that are long deleted.
build_wheel() {
  local source="$scratch/source"
  mkdir -p "$source"
  (cd "$launch/.." && cp -Rp t5like gin setup.py pyproject.toml README.md LICENSE "$source/")
  "$2" -m pip wheel --quiet --no-deps --disable-pip-version-check --wheel-dir "$1" "$source" \
    || fail 1 "the wheel could not be built" try "PYTHON=/path/to/python3 with pip, or --from=FILE.whl"
}

# gone: whether the pod is no longer there to be used. Preemption shows in the request, in a slice, or in both.
gone() {
  local node status
  queue_state
  [ "$state" = ACTIVE ] || return 0
  for node in $(nodes); do
    status=0
    call gcloud compute tpus tpu-vm describe "$node" "${where[@]}" "--format=value(state)" || status=$?
    [ "$status" -ne "$not_found" ] || return 0
    case "$reply" in PREEMPTED | TERMINATED | STOPPED | DELETING) return 0 ;; esac
  done
  return 1
}

# give_up STEP: not all workers could take it. For `up` that is no end, if the pod was preempted meanwhile.
give_up() {
  local said
  said="$(grep " $1 failed" <<<"$answers" || tail -n 2 "$scratch/stderr")"
  if [ "$step" = up ] && gone; then return "$preempted"; fi
  fail 1 "not all workers of $name could $1" missing "$(name_missing | paste -sd, -)" said "$said" \
    try "the same command again; launch/tpu_pod.sh status $name"
}

copy() {
  call gcloud compute tpus queued-resources scp --recurse "$memory/t5like-pod" "$name:" "${where[@]}" \
    "${ssh_flags[@]}" "${to_all[@]}" || give_up copy
}

# A step of its own must find the pod there.
need_pod() {
  queue_state
  [ "$state" = ACTIVE ] || [ -n "$dry_run" ] || fail 1 "$name is not there (its request is $state)" \
    try "launch/tpu_pod.sh create $name"
}

install() {
  need_pod
  bundle
  install_on_all
}

install_on_all() {
  copy || return
  on_all install || give_up install || return
  [ -z "$dry_run" ] || return 0
  [ "$(awk '{print $4}' <<<"$answers" | sort -u | wc -l)" -eq 1 ] \
    || fail 1 "the workers have different packages" said "$answers" try "delete the pod and create it again"
  say "the same packages on $workers workers ($(awk 'NR==1 {print $4}' <<<"$answers"))"
}

start() {
  local box="$memory/t5like-pod" words=("${run[@]}")
  if [ "$step" = start ]; then need_pod; fi
  if [ "${run[1]:-}" = train ] && [ "${option[restarts]}" -gt 0 ] && [[ " ${run[*]} " != *" --restarts"* ]]; then
    words=(t5like train "--restarts=${option[restarts]}" "${run[@]:2}")
  fi
  if [ -n "$dry_run" ]; then
    echo "+ echo $(quoted exec "${words[@]}") > $(quoted "$box/command.sh")"
  else
    [ -e "$box/source" ] || fail 2 "t5like is not installed on $name" try "launch/tpu_pod.sh install $name"
    echo "exec $(quoted "${words[@]}")" >"$box/command.sh"
  fi
  copy || return
  on_all start || give_up start || return
  [ -n "$dry_run" ] || say "started on $workers workers"
}

# Until the run ends: worker 0 says everything, the others only what went wrong.
logs() {
  local -a ssh=(gcloud compute tpus queued-resources ssh "$name" "${where[@]}" "${ssh_flags[@]}"
    --ssh-flag=-oServerAliveInterval=30)
  if [ -n "$dry_run" ]; then
    call "${ssh[@]}" --node=0 --worker=0 "--command=bash t5like-pod/worker.sh follow"
    call "${ssh[@]}" "${to_all[@]}" "--command=bash t5like-pod/worker.sh errors"
    return
  fi
  if [ "$step" = logs ]; then need_pod; fi
  set -m # process groups: ended with all that gcloud started
  "${ssh[@]}" "${to_all[@]}" "--command=bash t5like-pod/worker.sh errors" 2>/dev/null </dev/null &
  "${ssh[@]}" --node=0 --worker=0 "--command=bash t5like-pod/worker.sh follow" 2>"$scratch/stderr" </dev/null \
    | grep --line-buffered -v '^t5like-pod: ' | sed -u 's/^/worker 0 | /' &
  set +m
  wait $! || true
  end_streams 2>/dev/null
  if [ "$step" = logs ]; then
    on_all status || give_up status
    summary
    case "$ended" in
      running | vanished) say "the run goes on, the log has ended ($ended): launch/tpu_pod.sh status $name" ;;
      *) return "$ended" ;;
    esac
  fi
}

end_streams() {
  local job
  for job in $(jobs -p); do
    kill -TERM -- "-$job" || kill -TERM "$job" || true
    wait "$job" || true
  done
}

# The outcome of a run from the answers of all: `vanished`, if a host has forgotten it; `running`; or the status that
# says most: bad input before a failure, a failure before being stopped. $deliberate, if it was stopped by `stop`.
summary() {
  local statuses status
  ended=0 deliberate=""
  statuses="$(sed -n 's/.* status ended \([0-9]*\).*/\1/p' <<<"$answers" | sort -nu)"
  if grep -q ' status running' <<<"$answers"; then ended=running; fi
  if grep -q ' stopped$' <<<"$answers"; then deliberate=yes; fi
  if grep -q ' status vanished' <<<"$answers"; then
    ended=vanished
    return
  fi
  for status in $statuses; do
    if [ "$status" -ne 0 ] && [ "$status" -ne 143 ] && [ "$status" -ne 130 ]; then
      ended="$status" # someone failed: if others still run, they wait for him in vain
      [ "$status" -ne 2 ] || return 0
    elif [ "$status" -ne 0 ] && [ "$ended" = 0 ]; then
      ended="$status"
    fi
  done
}

status() {
  queue_state
  say "$name is $state"
  if [ -z "$dry_run" ] && [ "$state" != ACTIVE ]; then return; fi
  on_all status || say "cannot be reached: $(name_missing | paste -sd, -)"
  cut -d' ' -f2- <<<"$answers"
}

stop() {
  queue_state
  if [ -z "$dry_run" ] && [ "$state" != ACTIVE ]; then
    say "$name is $state: nothing runs there"
    return
  fi
  on_all stop || give_up stop
  say "the run has saved and ended; the pod stays"
}

delete() {
  local try tries="${T5LIKE_RETRIES:-6}" status
  if [ -z "$dry_run" ]; then billed=unknown; fi
  for ((try = 1; try <= tries; try++)); do
    status=0
    call gcloud compute tpus queued-resources delete "$name" "${where[@]}" --force --quiet || status=$?
    [ -z "$dry_run" ] || return 0
    [ "$status" -eq 0 ] || break
    # Deleting is believed when the pod is not there any more.
    queue_state
    if [ "$state" = NONE ]; then
      status="$not_found"
      break
    fi
    say "$name is still $state"
    if [ "$try" -lt "$tries" ]; then pause "$try"; fi
  done
  if [ "$status" -ne "$not_found" ]; then
    billed=yes
    fail 1 "$name could not be deleted" said "$(tail -n 3 "$scratch/stderr")" \
      see "https://console.cloud.google.com/compute/tpus?project=$project"
  fi
  billed="" state=NONE
  say "$name is deleted: nothing of it is billed any more"
  if [ "$step" = delete ]; then rm -rf "$memory"; fi
}

# look: what became of the run, in $outcome: running, vanished, preempted, unreachable, or its exit status.
look() {
  outcome=preempted
  if gone; then return; fi
  if on_all status; then
    summary
    outcome="$ended"
  elif ! gone; then # a preemption takes a while to be reported
    outcome=unreachable
  fi
}

# All steps, over and over until the run has ended.
bring_up() {
  local attempt outcome ended deliberate=""
  bundle
  for ((attempt = 0; attempt <= option[recreate]; attempt++)); do
    create
    if ! { install_on_all && start; }; then
      outcome=preempted
    elif [ -n "$dry_run" ]; then
      logs
      if [ -z "$keep" ]; then delete; fi
      return
    else
      watch_run
    fi
    case "$outcome" in
      preempted)
        say "$name was preempted: asking for another, to go on from the last checkpoint"
        if [ "$state" != NONE ]; then delete; fi
        ;;
      143 | 130)
        if [ -n "$deliberate" ]; then
          say "the run was stopped; the pod stays"
          return "$outcome"
        fi
        say "the run was told to stop (status $outcome), but not by 'stop': going on from the last checkpoint"
        ;;
      vanished) say "a worker has forgotten the run (restarted?): going on from the last checkpoint" ;;
      unreachable) fail 1 "$name does not answer, though it is $state" missing "$(name_missing | paste -sd, -)" \
        try "launch/tpu_pod.sh status $name, then up again: the run goes on from its last checkpoint" ;;
      *) break ;;
    esac
  done
  [[ "$outcome" =~ ^[0-9]+$ && "$attempt" -le "${option[recreate]}" ]] \
    || fail 1 "the run was started $attempt times and did not end ($outcome)" try "--recreate=1000, or without --spot"
  if [ "$outcome" != 0 ]; then keep_logs; fi
  say "the run has ended with status $outcome"
  if [ -z "$keep" ]; then delete; fi
  return "$outcome"
}

# Until the run has ended; a stream that broke is taken up again.
watch_run() {
  outcome=running
  while [ "$outcome" = running ]; do
    logs
    look
    if [ "$outcome" = running ]; then sleep "${T5LIKE_RETRY_SECONDS:-10}"; fi
  done
}

# The last words of all workers, for when the pod is gone.
keep_logs() {
  gcloud compute tpus queued-resources ssh "$name" "${where[@]}" "${ssh_flags[@]}" "${to_all[@]}" \
    "--command=tail -n 200 t5like-pod/run.log" >"$memory/last_words.log" 2>&1 </dev/null || true
  say "the last words of all workers are in $memory/last_words.log"
}
