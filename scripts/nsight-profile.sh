#!/usr/bin/env bash
# An Nsight Systems profile of `gapless serve` under load; collecting begins when the server is ready and warm.
#   scripts/nsight-profile.sh [-d SECONDS] [-w SECONDS] [-o REPORT] [-l LOAD] [-- ARGUMENTS OF gapless serve]
# -d: how long to collect (10); -w: how long the load lasts before (5); -o: the report, without .nsys-rep (out/gapless);
# -l: a command line that sends load; without it, send some yourself. NSYS and GAPLESS may name the programs.
set -euo pipefail

say() { echo "gapless: $1" >&2; }
refuse() { say "$1" && exit 2; }

nsys=${NSYS:-nsys} gapless=${GAPLESS:-gapless}
seconds=10 warm=5 report=out/gapless load=
while getopts :d:w:o:l: option; do
    case $option in
        d) seconds=$OPTARG ;;
        w) warm=$OPTARG ;;
        o) report=$OPTARG ;;
        l) load=$OPTARG ;;
        *) refuse "-$OPTARG: unknown, or without its value; -d SECONDS, -w SECONDS, -o REPORT, -l LOAD, then -- and what gapless serve takes" ;;
    esac
done
shift $((OPTIND - 1))
for number in "$seconds" "$warm"; do
    [[ $number =~ ^[0-9]{1,5}(\.[0-9]{1,3})?$ ]] || refuse "'$number' is not allowed; seconds, as 10 or 2.5"
done
command -v "$nsys" >/dev/null || refuse "$nsys is not on PATH; install Nsight Systems, which comes with the CUDA toolkit, or name it in NSYS"
command -v "$gapless" >/dev/null || refuse "$gapless is not on PATH; activate its environment, or name it in GAPLESS"
mkdir -p "$(dirname "$report")" || refuse "-o: the folder of $report cannot be made"

folder=$(mktemp -d)
ready=$folder/ready.json session=gapless-$$
launched='' loading='' collecting='' sleeping=''

alive() { [ -n "$1" ] && kill -0 "$1" 2>/dev/null; }

pause() { # a signal is answered at once, and not when the sleep has ended
    sleep "$1" &
    sleeping=$!
    wait "$sleeping"
}

stop_collecting() {
    [ -n "$collecting" ] || return 0
    collecting=
    "$nsys" stop --session="$session" || say "nsys stop failed: there may be no report"
}

finish() {
    status=$?
    trap - EXIT INT TERM HUP
    set +e # whatever fails, the rest is to end, too
    stop_collecting
    if [ -n "$loading" ]; then # it may not have its group yet
        kill -TERM -- "-$loading" 2>/dev/null || kill -TERM "$loading" 2>/dev/null
    fi
    if alive "$sleeping"; then kill "$sleeping"; fi
    server=$(cat "$folder/pid" 2>/dev/null)
    if alive "$server"; then kill -TERM "$server"; fi # it drains
    wait
    while alive "$server"; do sleep 0.1; done # should nsys not have waited for it
    rm -rf "$folder"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# shellcheck disable=SC2016 # the inner shell expands these: its pid becomes that of gapless serve
"$nsys" launch --session-new="$session" --trace=cuda,nvtx,osrt --cuda-graph-trace=node \
    bash -c 'echo $$ >"$0" && exec "$@"' "$folder/pid" "$gapless" serve --ready-file "$ready" "$@" &
launched=$!
while [ ! -s "$ready" ]; do
    if ! alive "$launched"; then
        say "the server ended before it was ready"
        exit 1
    fi
    pause 0.1
done
if [ -n "$load" ]; then
    setsid bash -c "$load" & # a group of its own, that ends as one
    loading=$!
fi
say "the server is ready; collecting begins in $warm s"
pause "$warm"
collecting=yes
"$nsys" start --session="$session" --sample=none --cpuctxsw=none --output="$report" --force-overwrite=true
say "collecting for $seconds s"
pause "$seconds"
stop_collecting
say "$report.nsys-rep: open it with nsys-ui, or: nsys stats $report.nsys-rep; docs/profiling.md says how to read it"
