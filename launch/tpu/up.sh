# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034 # names that tpu_pod.sh and the other parts set and read
# `up`: all steps, again and again until the run has ended, whatever happens to its pod. Sourced by tpu_pod.sh.

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
