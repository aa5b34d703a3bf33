#!/usr/bin/env bash
# Runs a command in an emulated machine that has an RDMA device (Soft-RoCE), for tests on hosts that
# have none.
#
#   ci/rdma/guest.sh --install         what this needs, from Debian packages (as root)
#   ci/rdma/guest.sh COMMAND [ARG...]  the command's exit status; 125 if the machine gave none
#
# The guest runs Debian's kernel on this host's own file system, read-only: what the command writes
# is lost, but for what it writes to the directory that OUT names there. The device is rxe0, at
# 10.99.0.1 (GUEST_IP). Settings, from the environment:
#
#   GUEST_CACHE    where kernel and RAM disk are kept     (~/.cache/swarm-guest)
#   GUEST_OUT      what is OUT in the guest, on the host  ($GUEST_CACHE/out)
#   GUEST_CPUS, GUEST_MEMORY, GUEST_SECONDS               (2, 1G, 300: it is ended once each of its
#                                                         processors had as much, or after five
#                                                         times that: a busy host gives it little)
#   GUEST_NET      a -netdev that joins guests; else rxe0 stands on an interface of its own
#   GUEST_QEMU     more arguments for QEMU                GUEST_PASS  names of variables to pass on
#
# One emulated processor would make atomics across guests non-atomic: leave it at two or more.
set -euo pipefail

packages=(qemu-system-x86 rdma-core ibverbs-providers libibverbs-dev librdmacm-dev libclang-dev
    ibverbs-utils iproute2 kmod cpio busybox-static xz-utils protobuf-compiler libprotobuf-dev etcd-server)

if [[ "${1:-}" == --install ]]; then
    exec "$(dirname "$0")/../install.sh" "${packages[@]}"
fi
if [[ $# -eq 0 ]]; then
    sed -n '2,/^set /{/^#/!d;s/^# \{0,1\}//p}' "$0"
    exit 2
fi

cache="${GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/swarm-guest}"
out="${GUEST_OUT:-$cache/out}"
address="${GUEST_IP:-10.99.0.1}"
network="${GUEST_NET:-}"
mkdir -p "$cache" "$out"

# Debian's current kernel, as a package's name and as a version.
package="$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[^ ]*\).*/\1/p' |
    head -n 1)"
version="${package#linux-image-}"
if [[ -z "$version" ]]; then
    echo "guest.sh: no kernel package is known; run $0 --install as root" >&2
    exit 125
fi
kernel="$cache/$version"

# The kernel as an ELF file, which starts at once; a compressed one would first unpack itself on the
# emulated processor.
unpack_kernel() {
    local image="$1" sectors offset length
    sectors=$(od -An -tu1 -j $((0x1f1)) -N 1 "$image")
    offset=$(od -An -tu4 -j $((0x248)) -N 4 "$image")
    length=$(od -An -tu4 -j $((0x24c)) -N 4 "$image")
    dd if="$image" bs=1M iflag=skip_bytes,count_bytes status=none \
        skip=$(((sectors + 1) * 512 + offset)) count=$((length)) |
        xz --decompress --single-stream --stdout
}

# The first program: mounts the host's files under a layer of memory, and goes on there.
first_program() {
    cat <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
while read -r module; do insmod "/modules/$module"; done < /modules/order
files=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "ro,cache=loose,$files" host /host
mount -t 9p -o "rw,cache=none,$files" out /out
mount -t tmpfs none /layer
mkdir /layer/changes /layer/work /layer/root
mount -t overlay -o lowerdir=/host,upperdir=/layer/changes,workdir=/layer/work none /layer/root
for place in proc sys dev; do mount --move "/$place" "/layer/root/$place"; done
mkdir -p /layer/root/dev/pts /layer/root/dev/shm
mount -t devpts none /layer/root/dev/pts
mount -t tmpfs none /layer/root/dev/shm
mount -t tmpfs none /layer/root/run
mkdir /layer/root/run/out
mount --move /out /layer/root/run/out
exec switch_root /layer/root /bin/bash /run/out/.second
INIT
}

prepare() {
    local work="$kernel.new" disk module
    rm -rf "$work"
    disk="$work/disk"
    mkdir -p "$work/package" "$disk"/{bin,modules,proc,sys,dev,host,out,layer}
    (cd "$work/package" && apt-get download -qq -o APT::Sandbox::User=root "$package")
    dpkg -x "$work"/package/*.deb "$work"
    rm -r "$work/package"
    depmod -b "$work" "$version"
    unpack_kernel "$work/boot/vmlinuz-$version" > "$work/vmlinux"
    cp /bin/busybox "$disk/bin/"
    for module in virtio_pci virtio_console 9pnet_virtio 9p overlay; do
        modprobe -d "$work" -S "$version" --show-depends "$module"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r module; do
        cp "$module" "$disk/modules/"
        basename "$module"
    done > "$disk/modules/order"
    first_program > "$disk/init"
    chmod +x "$disk/init"
    (cd "$disk" && find . | cpio --quiet -o -H newc | gzip -1) > "$work/disk.gz"
    rm -rf "$disk" "$kernel"
    mv "$work" "$kernel"
}

exec 9> "$cache/lock"
flock 9
[[ -e "$kernel/disk.gz" ]] || prepare >&2
flock -u 9
exec 9>&-

# What runs in the guest: the second program makes it a usable system, the third has the device.
rm -f "$out/.status"
cat > "$out/.second" <<GUEST
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin OUT=/run/out
export HOME=$(printf %q "$HOME")
exec < /dev/hvc0 > /dev/hvc0 2>&1
stty raw -echo
# At boot the kernel measures how fast the processor counts. On a busy host the result may be a multiple of
# the truth, and a second in here minutes out there. The machine's calendar clock is the host's.
both_clocks() { # in \$calendar and \$clock, seconds and hundredths, read at about the same time
    local rest before
    for _ in {1..50}; do
        read -r before rest < /proc/uptime
        read -r calendar < /sys/class/rtc/rtc0/since_epoch
        read -r clock rest < /proc/uptime
        before=\$((10#\${before/./})) clock=\$((10#\${clock/./}))
        ((clock - before > 20)) || break
    done
}
both_clocks; began=\$calendar clock_began=\$clock
while ((calendar < began + 3)); do both_clocks; done
((out_there = calendar - began, in_here = clock - clock_began))
if ((in_here < 50 * (out_there - 1) || in_here > 200 * (out_there + 1))); then
    echo "\$in_here hundredths of a second for \$out_there s" > /run/out/.clock
    sync
    echo o > /proc/sysrq-trigger
    sleep 60
fi
mkdir -p /usr/lib/modules
ln -sfn $(printf %q "$kernel/lib/modules/$version") /usr/lib/modules/$version
setsid bash /run/out/.third
echo \$? > /run/out/.status
sync
echo o > /proc/sysrq-trigger
sleep 60
GUEST
{
    for name in ${!CARGO*} ${!RUST*} ${!SWARM*} ${GUEST_PASS:-}; do
        declare -p "$name"
    done
    if [[ -n "$network" ]]; then
        echo "modprobe virtio_net && interface=eth0 || exit 125"
    else
        echo "modprobe dummy && ip link add rdma0 type dummy && interface=rdma0 || exit 125"
    fi
    cat <<GUEST
modprobe -a crc32_generic rdma_rxe rdma_ucm ib_umad || exit 125
ip link set lo up
ip link set "\$interface" mtu 4200 up && ip address add $address/24 dev "\$interface" || exit 125
rdma link add rxe0 type rxe netdev "\$interface" || exit 125
cd $(printf %q "$PWD")
$(printf '%q ' "$@")
GUEST
} > "$out/.third"

# On a busy host the kernel would miss the ticks by which it checks its timer, and give up: it does not
# check (no_timer_check).
arguments=(-machine q35 -accel "tcg,thread=multi" -cpu max -smp "${GUEST_CPUS:-2}"
    -m "${GUEST_MEMORY:-1G}" -nodefaults -no-user-config -no-reboot -display none
    -serial "file:$out/console.log" -kernel "$kernel/vmlinux" -initrd "$kernel/disk.gz"
    -append "console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check nokaslr mitigations=off"
    -device virtio-serial-pci -chardev "stdio,id=console,signal=off"
    -device "virtconsole,chardev=console"
    -virtfs "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"
    -virtfs "local,path=$out,mount_tag=out,security_model=none,multidevs=remap")
if [[ -n "$network" ]]; then
    mac="52:54:00:00:00:$(printf %02x "${address##*.}")"
    arguments+=(-netdev "$network,id=net"
        -device "virtio-net-pci,netdev=net,romfile=,host_mtu=4200,mac=$mac")
fi
# shellcheck disable=SC2206
arguments+=(${GUEST_QEMU:-})
for boot in 1 2 3; do
    rm -f "$out/.clock"
    timeout --foreground -k 5 "$((${GUEST_SECONDS:-300} * 5))" \
        prlimit --cpu="$((${GUEST_SECONDS:-300} * ${GUEST_CPUS:-2}))" \
        qemu-system-x86_64 "${arguments[@]}" < /dev/null ||
        echo "guest.sh: QEMU ended with status $?" >&2
    [[ -e "$out/.clock" ]] || break
    echo "guest.sh: the guest's clock ran wrong ($(cat "$out/.clock")) at boot $boot of 3" >&2
done

if [[ ! -s "$out/.status" ]]; then
    echo "guest.sh: the guest reported nothing; the end of its console:" >&2
    tail -n 20 "$out/console.log" >&2
    exit 125
fi
exit "$(cat "$out/.status")"
