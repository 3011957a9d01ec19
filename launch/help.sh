# shellcheck shell=bash
# Sourced by the launch scripts with their arguments: --help or -h before `--` prints the comment at the top of the
# script and exits.
for word in "$@"; do
  case "$word" in
    --) break ;;
    -h | --help) sed -n '2,${/^#/!q; /^# shellcheck/d; s/^# \{0,1\}//p}' "${BASH_SOURCE[1]}" && exit ;;
  esac
done
