"""Limits and sizes as programs see them: with 1 GiB and two cores, a runtime must size itself by these."""

from __future__ import annotations

from tests.docker.case import case

CASES = (
    case("nproc", "nproc"),
    case("python-cpu-count", "python3 -c 'import os; print(os.cpu_count(), len(os.sched_getaffinity(0)))'"),
    case("lscpu", "lscpu -p=CPU | grep -vc '#'; lscpu | grep -c 'On-line'"),
    case("proc-cpuinfo", "grep -c ^processor /proc/cpuinfo"),
    case("sys-cpu-online", "cat /sys/devices/system/cpu/online /sys/devices/system/cpu/possible"),
    case("sys-cpu-topology", "ls /sys/devices/system/cpu/cpu0/topology | head -3"),
    case("sys-memory-block-size", "ls /sys/devices/system/node 2>/dev/null | sort"),
    case("proc-meminfo", 'awk \'/MemTotal/ {print ($2 > 1000) ? "some" : "none"}\' /proc/meminfo'),
    case("proc-meminfo-total", "awk '/MemTotal/ {print $2}' /proc/meminfo"),
    case("free", "free -m | awk '/Mem/ {print $2}'"),
    case("psutil-cpus", "python3 -c 'import psutil; print(psutil.cpu_count(), psutil.cpu_count(logical=False))'"),
    case("psutil-memory", "python3 -c 'import psutil; print(psutil.virtual_memory().total >> 20)'"),
    case("psutil-disks", "python3 -c 'import psutil; print(psutil.disk_usage(\"/\").total > 0)'"),
    case("psutil-boot-time-and-load", "python3 -c 'import psutil; print(psutil.boot_time() > 0, len(psutil.getloadavg()))'"),
    case("psutil-network", "python3 -c 'import psutil; print(sorted(psutil.net_if_addrs()))'"),
    case("psutil-processes", "python3 -c 'import psutil; print(psutil.Process(1).pid, psutil.Process().username())'"),
    case("java-heap", "java -XX:+PrintFlagsFinal -version 2>/dev/null | awk '$2 == \"MaxHeapSize\" {print $4}'"),
    case(
        "java-cpus", "java -Xlog:os+container=trace -version 2>/dev/null | grep -i 'active_processor_count' | tail -1 | grep -o '[0-9]*$'"
    ),
    case(
        "java-container-memory",
        "java -XshowSettings:system -version 2>&1 | grep -E 'Memory Limit|Effective CPU Count|Provider' | tr -s ' '",
    ),
    case("node-memory", "node -e 'console.log(require(\"v8\").getHeapStatistics().heap_size_limit / 1048576 | 0)'"),
    case("node-cpus", "node -e 'console.log(require(\"os\").cpus().length)'"),
    case("node-constrained-memory", "node -e 'console.log(process.constrainedMemory ? process.constrainedMemory() : \"none\")'"),
    case("cgroup-memory-limit", "cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes"),
    case(
        "cgroup-cpu-limit",
        "cat /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu/cpu.cfs_period_us",
    ),
    case("cgroup-pids-limit", "cat /sys/fs/cgroup/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids/pids.max"),
    case(
        "cgroup-memory-usage",
        'f=$(ls /sys/fs/cgroup/memory.current /sys/fs/cgroup/memory/memory.usage_in_bytes 2>/dev/null | head -1); awk \'{print ($1 > 0 && $1 < 1073741824) ? "below" : "above"}\' $f',
    ),
    case(
        "cgroup-read-only",
        "if test -d /sys/fs/cgroup/memory; then mkdir /sys/fs/cgroup/memory/x; else mkdir /sys/fs/cgroup/x; fi",
        refused=True,
    ),
    case(
        "cgroup-limit-cannot-be-raised",
        "f=/sys/fs/cgroup/memory.max; test -e $f || f=/sys/fs/cgroup/memory/memory.limit_in_bytes; echo 99999999999 > $f",
        refused=True,
    ),
    case(
        "cgroup-path-resolves",
        "p=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup); test -n \"$p\" || p=$(sed -n 's/^0:://p' /proc/self/cgroup); test -e /sys/fs/cgroup/memory$p/memory.limit_in_bytes || test -e /sys/fs/cgroup/memory/memory.limit_in_bytes || test -e /sys/fs/cgroup$p/memory.max; echo $?",
    ),
    case("cgroup-hierarchies", "ls /sys/fs/cgroup | grep -x -E 'cpu|cpuacct|cpuset|memory|pids|(cpu|memory|pids).max' | sort"),
    case("mountinfo-cgroups", "grep ' - cgroup' /proc/self/mountinfo | head -1 | wc -l"),
    case("shm-size", "df -k /dev/shm | awk 'END {print $2}'"),
    case("shm-use", "head -c 60M /dev/zero > /dev/shm/a && stat -c %s /dev/shm/a"),
    case("shm-limit", "head -c 70M /dev/zero > /dev/shm/a", refused=True),
    case("dev-size", "df -k /dev | awk 'END {print $2}'"),
    case("df-root", 'df -P / | awk \'END {print $6, ($2 > 1000000) ? "large" : "small"}\''),
    case("df-names", "df -P 2>/dev/null | awk 'NR > 1 {print $6}' | grep -x -E '/|/dev|/dev/shm' | sort"),
    case("memory-over-the-limit", "python3 -c 'a = bytearray(1500 << 20); print(len(a))'", exits=137),
    case("memory-within-the-limit", "python3 -c 'a = bytearray(700 << 20); print(len(a) >> 20)'"),
    case("memory-over-the-limit-in-a-child", "python3 -c 'a = bytearray(1500 << 20)'; echo $?"),
    case("tmpfs-counts", "head -c 40M /dev/zero > /dev/shm/a; echo $?"),
    case("uptime", "uptime >/dev/null; echo $?; cat /proc/uptime | wc -w"),
    case("loadavg", "wc -w < /proc/loadavg"),
    case("vmstat-and-top", "vmstat 1 1 | tail -1 | wc -w; top -bn1 | head -1 | grep -c 'load average'"),
    case("getconf", "getconf ARG_MAX; getconf PAGE_SIZE; getconf _NPROCESSORS_ONLN; getconf OPEN_MAX | awk '{print ($1 >= 1024)}'"),
    case("transparent-huge-pages", "cat /sys/kernel/mm/transparent_hugepage/enabled"),
    case("swap-view", "wc -l < /proc/swaps | awk '{print ($1 >= 0)}'"),
    case(
        "cpu-quota-holds",
        'python3 -c "import multiprocessing as m,time\ndef f(_):\n  e=time.time()+1.5; c=time.process_time()\n  while time.time()<e: pass\n  return time.process_time()-c\nprint(sum(m.Pool(4).map(f,range(4)))<4.5)"',
    ),
)
