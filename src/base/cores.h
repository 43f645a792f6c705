// cores.h -- which CPUs are worth one busy thread each: affinity mask, topology, cgroup quota.
// A physical core counts once: SMT siblings share arithmetic units. Roots are parameters for tests.
#pragma once

#include <string>
#include <vector>

namespace braid {

// CPUs of the affinity mask at the first call, ascending, never empty. Later, pinned pools narrow
// the mask.
const std::vector<int>& affinity_cpus();

// The first CPU on each physical core; unreadable topology counts as a core. `cpu_root` is
// /sys/devices/system/cpu.
std::vector<int> one_per_core(const std::vector<int>& cpus, const std::string& cpu_root);

// Whole CPUs of the cgroup quota (v2 or v1), rounded down, at least 1; 0: no quota. `proc_cgroup`
// is /proc/self/cgroup, `cgroup_root` is /sys/fs/cgroup.
int quota_cpus(const std::string& proc_cgroup, const std::string& cgroup_root);

}  // namespace braid
