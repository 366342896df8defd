#!/bin/sh
# Runs on each host, as /usr/local/sbin/ebbtide-host: joins it to a cluster, takes it out again, wipes it.
#
#     ebbtide-host VERB NODE_UID
#
# Prints one line, `WORD BOOT_ID DETAILS`, at once: slow work goes on in a systemd unit. The kubelet is started
# and not enabled, so a host that is powered on to be wiped runs nothing of its last tenant.
set -eu
verb=$1 uid=$2
root=${EBBTIDE_ROOT:-}  # where the tests pretend that / is
here=$root/var/lib/ebbtide run=$root/run/ebbtide
disks=$root/etc/ebbtide/data-disks  # one path on each line: whole drives that tenants' data is on
mkdir -p "$here" "$run"

say() { echo "$1 $(cat "$root/proc/sys/kernel/random/boot_id") ${2:-}"; }

begin() {  # a verb that takes long, in a unit of its own
    systemd-run --quiet --collect --unit="ebbtide-$1" "$0" "$1-now" "$uid"
}

clean() { cat "$here/$uid.clean" 2>/dev/null || true; }  # what wiped it before it joined

busy() { systemctl is-active --quiet "ebbtide-$1"; }

state() {
    if busy wipe; then say wiping
    elif busy reset; then say resetting
    elif busy join; then say joining "$(clean)"
    elif [ -e "$here/$uid.wiped" ]; then say wiped "$(cat "$here/$uid.wiped")"
    elif [ -e "$here/$uid.failed" ]; then say failed "$(tail -n 1 "$here/$uid.failed" | cut -c 1-300)"
    elif [ ! -e "$here/$uid.joined" ]; then say none
    elif systemctl is-active --quiet kubelet; then say joined "$(clean)"
    else say down
    fi
}

case $verb in
state) state ;;
join)
    umask 077
    IFS= read -r config; printf '%s\n' "$config" >"$run/join.json"
    IFS= read -r discovery; printf '%s\n' "$discovery" >"$run/discovery.json"
    rm -f "$here/$uid.failed"
    [ ! -e "$here/$uid.wiped" ] || mv "$here/$uid.wiped" "$here/$uid.clean"
    [ -e "$here/$uid.joined" ] || busy join || begin join
    state ;;
join-now)
    if kubeadm join --config "$run/join.json" >"$here/$uid.log" 2>&1; then
        systemctl disable --quiet kubelet
        touch "$here/$uid.joined"
    else
        mv "$here/$uid.log" "$here/$uid.failed"
    fi
    rm -f "$run/join.json" "$run/discovery.json" ;;
start)
    systemctl start kubelet
    state ;;
wipe | reset)
    if [ -e "$here/$uid.wiped" ] || busy "$verb"; then state; exit; fi
    if [ "$verb" = reset ] && [ ! -e "$here/$uid.log" ] && [ ! -e "$here/$uid.failed" ]; then state; exit; fi
    [ ! -e "$here/$uid.log" ] || tail -n 3 "$here/$uid.log" >&2  # what the last try said
    if busy join; then systemctl stop ebbtide-join; fi
    begin "$verb"
    state ;;
reset-now)
    kubeadm reset --force >"$here/$uid.log" 2>&1
    rm -f "$here/$uid".* ;;
wipe-now)
    kubeadm reset --force >"$here/$uid.log" 2>&1
    systemctl stop containerd
    rm -rf "$root/var/lib/kubelet" "$root/var/lib/containerd" "$root/var/log/pods" "$root/etc/cni/net.d"
    count=0
    while IFS= read -r disk || [ -n "$disk" ]; do  # the last line may lack its end
        [ -n "$disk" ] || continue
        blkdiscard --force "$disk" >>"$here/$uid.log" 2>&1
        count=$((count + 1))
    done <"$disks"
    [ "$count" -gt 0 ] || { echo "$disks names no drive" >>"$here/$uid.log"; exit 1; }
    systemctl start containerd
    rm -f "$here"/*
    echo "kubeadm reset; blkdiscard of $count drives, $(date -u +%Y-%m-%dT%H:%M:%SZ)" >"$here/$uid.wiped" ;;
*)
    echo "ebbtide-host: no verb $verb" >&2
    exit 64 ;;
esac
