# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034 # names that tpu_pod.sh and the other parts set and read
# The run: started on all workers, listened to, told to stop, and what became of it. Sourced by tpu_pod.sh.

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

# Packs the local files that the command needs, or refuses a command that would not find them. Done once, before
# anything is requested: the pod after a preemption gets the same files.
find_files() {
  local python="${PYTHON:-python3}" files
  command -v "$python" >/dev/null || fail 2 "$python is not installed" try "PYTHON=/path/to/python3"
  files="$("$python" -I -S "$launch/files_of_command.py" "${with[@]}" "--tar=$scratch/files.tar" \
    --limit=$((256 << 20)) -- "${run[@]}")" || exit
  if [ -n "$files" ]; then
    say "$(wc -l <<<"$files") files of $PWD go to the workers:"
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

# The last words of all workers, for when the pod is gone.
keep_logs() {
  gcloud compute tpus queued-resources ssh "$name" "${where[@]}" "${ssh_flags[@]}" "${to_all[@]}" \
    "--command=tail -n 200 t5like-pod/run.log" >"$memory/last_words.log" 2>&1 </dev/null || true
  say "the last words of all workers are in $memory/last_words.log"
}
