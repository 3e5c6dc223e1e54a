# Removes what earlier demos left in the folder runs; sourced by scripts/demo, not run.
# A testnet that is running holds a lock on its own folder and on the shared one: see psyche/testnet/scratch.py.
# shellcheck shell=bash

clean_runs() {
  local folder status busy=()
  for folder in runs/demo-[0-9]* runs/demo-kill-[0-9]* runs/cache; do
    [ -d "$folder" ] || continue
    status=0
    flock --nonblock --conflict-exit-code 75 "$folder" rm -rf "$folder" || status=$?
    case "$status" in
      0) ;;
      75) busy+=("$folder") ;;
      *) fail "$PWD/$folder could not be removed (above)." ;;
    esac
  done
  say "removed the results of earlier demos"
  [ ${#busy[@]} -eq 0 ] || say "left alone, because a run is using them: ${busy[*]}"
}
