# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034 # variables that tpu_pod.sh and the other parts set and read
# Builds the package, copies it to all workers and installs it there. Sourced by tpu_pod.sh.

preempted=75 # the status of a step whose pod was preempted

# Builds the package once, so that the pod after a preemption gets the same.
bundle() {
  local from="${option[from]:-}" box="$memory/t5like-pod" python="${PYTHON:-python3}"
  case "$from" in
    git+*@*) option[source]="$from" ;;
    git+*) fail 2 "--from=$from has no revision, so its version may change" try "--from=$from@REVISION" ;;
    *.whl | *.tar.gz) option[source]="$(basename "$from")" ;;
    "") option[source]="a wheel of this checkout" ;;
    *) fail 2 "invalid --from: $from" expected "a .whl or .tar.gz file, or git+URL@REVISION" ;;
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
    *) [ -e "$from" ] || fail 2 "no file $from" && cp "$from" "$box/" ;;
  esac
  echo "${option[source]}" >"$box/source"
  { cat "$box/source" "$box"/*.whl "$box"/*.tar.gz 2>/dev/null || true; } | sha256sum | cut -c1-12 >"$box/digest"
  if [ -n "${option[as_of]:-}" ]; then
    echo "${option[as_of]}" >"$box/as_of"
  elif [ ! -e "$box/as_of" ]; then
    date -u +%Y-%m-%dT%H:%M:%SZ >"$box/as_of"
  fi
  say "installing ${option[source]} with packages as of $(cat "$box/as_of")"
}

# Built from a copy: an old build/ folder in the checkout would add deleted files to the wheel.
build_wheel() {
  local source="$scratch/source"
  mkdir -p "$source"
  (cd "$launch/.." && cp -Rp t5like gin setup.py pyproject.toml README.md LICENSE "$source/")
  "$2" -m pip wheel --quiet --no-deps --disable-pip-version-check --wheel-dir "$1" "$source" \
    || fail 1 "cannot build the wheel" try "PYTHON=/path/to/python3 with pip, or --from=FILE.whl"
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
    || fail 1 "the workers have different packages" message "$answers" try "delete the pod and create it again"
  say "identical packages on $workers workers ($(awk 'NR==1 {print $4}' <<<"$answers"))"
}

copy() {
  call gcloud compute tpus queued-resources scp --recurse "$memory/t5like-pod" "$name:" "${where[@]}" \
    "${ssh_flags[@]}" "${to_all[@]}" || give_up copy
}

# give_up STEP: fails because not all workers could run it; `up` continues if the pod was preempted meanwhile.
give_up() {
  local message
  message="$(grep " $1 failed" <<<"$answers" || tail -n 2 "$scratch/stderr")"
  if [ "$step" = up ] && gone; then return "$preempted"; fi
  fail 1 "$1 failed on some workers of $name" missing "$(unreachable_workers | paste -sd, -)" message "$message" \
    try "run the same command again; launch/tpu_pod.sh status $name"
}
