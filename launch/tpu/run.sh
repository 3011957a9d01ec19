# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034 # variables that tpu_pod.sh and the other parts set and read
# Starts, follows and stops the run on all workers, and determines its outcome. Sourced by tpu_pod.sh.

# Rejects a command whose checkpoints would be lost with the pod.
check_command() {
  local argument
  [ $# -gt 0 ] || fail 2 "missing command after --" try "-- t5like train ... --gin.MODEL_DIR=gs://..."
  [ "$1" = "t5like" ] || fail 2 "invalid command: $1" expected "t5like, which is installed on the workers"
  for argument in "$@"; do
    case "$argument" in
      --gin.MODEL_DIR=gs://* | --gin.MODEL_DIR="'gs://"* | --gin.MODEL_DIR='"gs://'*) return 0 ;;
      --gin.MODEL_DIR=*) fail 2 "the checkpoints would be lost with the pod: $argument is a folder of each worker" \
        try "--gin.MODEL_DIR=gs://bucket/$name" ;;
    esac
  done
  say "note: no --gin.MODEL_DIR; it must be a gs:// path in the gin file"
}

# Packs the local files that the command needs, or rejects a command that would not find them. Done once, before
# anything is requested, so that the pod after a preemption gets the same files.
find_files() {
  local python="${PYTHON:-python3}" files
  command -v "$python" >/dev/null || fail 2 "$python is not installed" try "PYTHON=/path/to/python3"
  files="$("$python" -I -S "$launch/files_of_command.py" "${with[@]}" "--tar=$scratch/files.tar" \
    --limit=$((256 << 20)) -- "${run[@]}")" || exit
  if [ -n "$files" ]; then
    say "sending $(wc -l <<<"$files") files of $PWD to the workers:"
    head -n 20 <<<"$files" | sed 's/^/  /'
  fi
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
    cp "$scratch/files.tar" "$launch/tpu/worker.sh" "$box/"
  fi
  copy || return
  on_all start || give_up start || return
  [ -n "$dry_run" ] || say "started on $workers workers"
}

# Follows the log until the run ends: all output of worker 0, only errors of the others.
logs() {
  local -a ssh=(gcloud compute tpus queued-resources ssh "$name" "${where[@]}" "${ssh_flags[@]}"
    --ssh-flag=-oServerAliveInterval=30)
  if [ -n "$dry_run" ]; then
    call "${ssh[@]}" --node=0 --worker=0 "--command=bash t5like-pod/worker.sh follow"
    call "${ssh[@]}" "${to_all[@]}" "--command=bash t5like-pod/worker.sh errors"
    return
  fi
  if [ "$step" = logs ]; then need_pod; fi
  set -m # process groups, so that all that gcloud started can be ended
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
      running | vanished) say "the log has ended, but not the run ($ended): launch/tpu_pod.sh status $name" ;;
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

status() {
  queue_state
  say "$name is $state"
  if [ -z "$dry_run" ] && [ "$state" != ACTIVE ]; then return; fi
  on_all status || say "unreachable: $(unreachable_workers | paste -sd, -)"
  cut -d' ' -f2- <<<"$answers"
}

stop() {
  queue_state
  if [ -z "$dry_run" ] && [ "$state" != ACTIVE ]; then
    say "$name is $state: nothing is running"
    return
  fi
  on_all stop || give_up stop
  say "the run has saved and exited; the pod stays"
}

# Determines the outcome of a run from all answers, in $ended: `vanished`, if a host lost it; `running`; or the most
# informative status: invalid input before a failure, a failure before a stop. $deliberate is set if `stop` stopped it.
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
      ended="$status" # a failure: workers that still run would wait forever
      [ "$status" -ne 2 ] || return 0
    elif [ "$status" -ne 0 ] && [ "$ended" = 0 ]; then
      ended="$status"
    fi
  done
}

# Saves the end of all workers' logs before the pod is deleted.
keep_logs() {
  gcloud compute tpus queued-resources ssh "$name" "${where[@]}" "${ssh_flags[@]}" "${to_all[@]}" \
    "--command=tail -n 200 t5like-pod/run.log" >"$memory/last_words.log" 2>&1 </dev/null || true
  say "the end of all workers' logs is in $memory/last_words.log"
}
