# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034 # variables that tpu_pod.sh and the other parts set and read
# Requests, waits for and deletes the pod, and reports what is billed. Sourced by tpu_pod.sh.

# Reports on exit what is still billed, and how to end that.
report_billing() {
  local pod="$name (${option[accelerator]:-${option[type]:-} ${option[topology]:-}}, ${option[zone]:-}, $project)"
  [ -z "$dry_run" ] || return 0
  case "$billed" in
    yes) echo "STILL BILLED: $pod" ;;
    later) echo "WILL BE BILLED once it is granted: $pod" ;;
    asked | unknown) echo "MAY STILL BE BILLED: $pod" ;;
    *) return 0 ;;
  esac
  echo "  delete it  launch/tpu_pod.sh delete $name --project=$project --zone=${option[zone]}"
}

default_runtime() {
  case "${option[accelerator]:-${option[type]:-}}" in
    v2* | v3* | v4*) echo tpu-ubuntu2204-base ;;
    v5litepod* | v5e*) echo v2-alpha-tpuv5-lite ;;
    v5p*) echo v2-alpha-tpuv5 ;;
    v6e*) echo v2-alpha-tpuv6e ;;
    *) fail 2 "no default image for '${option[accelerator]:-${option[type]:-}}'" try "--runtime=..." \
      list "gcloud compute tpus tpu-vm versions list --zone=${option[zone]}" ;;
  esac
}

# Stores the command that requests the pod in $request.
make_request() {
  local runtime key
  [ -n "${option[accelerator]:-}" ] || { [ -n "${option[type]:-}" ] && [ -n "${option[topology]:-}" ]; } \
    || fail 2 "--accelerator is required" try "--accelerator=v5litepod-16, or --type=v5p --topology=2x2x4"
  runtime="${option[runtime]:-$(default_runtime)}"
  request=(gcloud)
  # Only the alpha commands support a named reservation.
  if [ -n "${option[reservation]:-}" ]; then request+=(alpha); fi
  request+=(compute tpus queued-resources create "$name" "${where[@]}" "--runtime-version=$runtime")
  if [ -n "${option[accelerator]:-}" ]; then
    request+=("--accelerator-type=${option[accelerator]/#v5e-/v5litepod-}")
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
      # Its TPUs are gone, but it still occupies its name and its quota.
      say "$name is $state: deleting it before a new request"
      delete
      state=NONE
      ;;
  esac
  if [ "$state" = NONE ]; then
    if [ -z "$dry_run" ]; then billed=asked; fi
    call "${request[@]}" || status=$?
    case "$status" in
      0 | "$already_exists") : ;;
      *) fail 1 "cannot request the pod" message "$(tail -n 3 "$scratch/stderr")" ;;
    esac
  fi
  if [ -z "$dry_run" ]; then wait_for_pod; fi
}

wait_for_pod() {
  local before="" why absent=0
  while true; do
    queue_state
    if [ "$state" = NONE ]; then absent=$((absent + 1)); fi # a request is listed with a delay
    if [ "$state" != "$before" ]; then say "$name is $state ($(date -u +%H:%M:%S) UTC)"; fi
    before="$state"
    case "$state" in
      ACTIVE) return ;;
      FAILED | SUSPENDED | NONE)
        if [ "$state" = NONE ] && [ "$absent" -lt 5 ]; then sleep "${T5LIKE_RETRY_SECONDS:-10}" && continue; fi
        call gcloud compute tpus queued-resources describe "$name" "${where[@]}" \
          "--format=value(state.failedData.error.message)" || true
        why="${reply:-no reason given}"
        if [ "$state" != NONE ]; then delete; fi # a failed request still counts against the quota
        case "$(verdict "$why")" in
          quota) fail 2 "the project has no quota for this" message "$why" try "another --zone or --accelerator" ;;
          *) fail 1 "the pod was not granted ($state)" message "$why" try "run it again, or with another --zone" ;;
        esac
        ;;
    esac
    sleep "${T5LIKE_POLL_SECONDS:-30}" &
    wait $!
  done
}

# A step that is run alone needs an existing pod.
need_pod() {
  queue_state
  [ "$state" = ACTIVE ] || [ -n "$dry_run" ] || fail 1 "$name is not ready (its request is $state)" \
    try "launch/tpu_pod.sh create $name"
}

# gone: whether the pod is no longer usable. A preemption shows in the request, in a slice, or in both.
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

delete() {
  local try tries="${T5LIKE_RETRIES:-6}" status
  if [ -z "$dry_run" ]; then billed=unknown; fi
  for ((try = 1; try <= tries; try++)); do
    status=0
    call gcloud compute tpus queued-resources delete "$name" "${where[@]}" --force --quiet || status=$?
    [ -z "$dry_run" ] || return 0
    [ "$status" -eq 0 ] || break
    # Verify that the pod is gone.
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
    fail 1 "cannot delete $name" message "$(tail -n 3 "$scratch/stderr")" \
      see "https://console.cloud.google.com/compute/tpus?project=$project"
  fi
  billed="" state=NONE
  say "$name is deleted and no longer billed"
  if [ "$step" = delete ]; then rm -rf "$memory"; fi
}
