# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034 # variables that tpu_pod.sh and the other parts set and read
# `up`: repeats all steps until the run has ended. Sourced by tpu_pod.sh.

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
        say "$name was preempted: requesting another to resume from the last checkpoint"
        if [ "$state" != NONE ]; then delete; fi
        ;;
      143 | 130)
        if [ -n "$deliberate" ]; then
          say "the run was stopped; the pod stays"
          return "$outcome"
        fi
        say "the run was interrupted (status $outcome), but not by 'stop': resuming from the last checkpoint"
        ;;
      vanished) say "a worker lost the run (restarted?): resuming from the last checkpoint" ;;
      unreachable) fail 1 "$name does not respond, though it is $state" \
        missing "$(unreachable_workers | paste -sd, -)" \
        try "launch/tpu_pod.sh status $name, then up again, which resumes from the last checkpoint" ;;
      *) break ;;
    esac
  done
  [[ "$outcome" =~ ^[0-9]+$ && "$attempt" -le "${option[recreate]}" ]] \
    || fail 1 "the run did not finish after $attempt starts ($outcome)" try "--recreate=1000, or without --spot"
  if [ "$outcome" != 0 ]; then keep_logs; fi
  say "the run has ended with status $outcome"
  if [ -z "$keep" ]; then delete; fi
  return "$outcome"
}

# Follows the run until it has ended, and reconnects broken streams.
watch_run() {
  outcome=running
  while [ "$outcome" = running ]; do
    logs
    check_outcome
    if [ "$outcome" = running ]; then sleep "${T5LIKE_RETRY_SECONDS:-10}"; fi
  done
}

# Stores the outcome of the run in $outcome: running, vanished, preempted, unreachable, or its exit status.
check_outcome() {
  outcome=preempted
  if gone; then return; fi
  if on_all status; then
    summary
    outcome="$ended"
  elif ! gone; then # a preemption is reported with a delay
    outcome=unreachable
  fi
}
