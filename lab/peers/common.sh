# What the peers share. Each peer is a wrapper: it starts what it needs at both ends of an emulated link,
# runs the rest of its command line, and ends what it started, by process id. So they stack:
#
#     lab link --delay 8ms --rate 1G -- lab/peers/wireguard lab/peers/tgt qemu-img info '$LAB_IMAGE'
#
# A tunnel exports LAB_SERVER, the address at which clients reach the far end through it; servers listen
# there. A server exports LAB_IMAGE, the words by which qemu's tools name its volume, and if it is NBD LAB_NBD,
# its URI; LAB_URI is one of iSCSI that our initiator takes.
set -euo pipefail
: "${LAB_FAR:?peers run inside lab link, which makes the two ends}"
export PATH=$PATH:/usr/sbin:/sbin
server=${LAB_SERVER:-$LAB_FAR_ADDRESS}
# The volume's size in MiB.
volume_mib=${LAB_VOLUME_MIB:-1024}
iscsi_port=3260

scratch=$(mktemp -d -p /dev/shm lab-peer.XXXXXX)
pids=()
stop() {
    local pid
    # Whoever ends everything at this end of the link asks more than once.
    trap '' TERM INT HUP
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do
        # tgtd ignores SIGTERM.
        timeout 3 tail --pid="$pid" -f /dev/null || kill -9 "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$scratch"
}
trap stop EXIT

far() { ip netns exec "$LAB_FAR" "$@"; }

# So many MiB for a volume that is full of data: reads of it read something, where holes would not be read.
data() { head -c "$1M" /dev/zero | tr '\0' '\245'; }

# Starts a command at one end (near or far) and remembers it. What it says goes to a file of its own.
start() {
    local end=$1 log=$scratch/log.${#pids[@]}
    shift
    case $end in
    far) ip netns exec "$LAB_FAR" "$@" >"$log" 2>&1 & ;;
    near) "$@" >"$log" 2>&1 & ;;
    esac
    pids+=($!)
}

# Waits until a command succeeds; tells what the servers said if it does not.
until_true() {
    local deadline=$((SECONDS + 20))
    until "$@" >/dev/null 2>&1; do
        if [ $SECONDS -ge $deadline ]; then
            echo "$(basename "$0"): gave up on: $*" >&2
            tail -n 5 "$scratch"/log.* >&2
            exit 1
        fi
        sleep 0.05
    done
}

# Whether something listens on an address and a port at an end.
listens() {
    local end=$1
    shift
    case $end in
    far) [ -n "$(far ss -Hltn "src $1:$2")" ] ;;
    near) [ -n "$(ss -Hltn "src $1:$2")" ] ;;
    esac
}
