// cores.h -- which CPUs are worth one busy thread each.
//
// A pure reading of three things the system says: the affinity mask, /sys topology (SMT siblings share their
// arithmetic units, so one CPU per physical core counts) and the cgroup's CPU quota. The roots are parameters
// so that tests can point them at a made-up tree.
#pragma once

#include <string>
#include <vector>

namespace braid {

// CPUs of the affinity mask when this was first asked (pools pin their callers, so later it may say less),
// ascending; never empty.
const std::vector<int>& affinity_cpus();

// The first CPU of `cpus` on each physical core, in order. `cpu_root` is /sys/devices/system/cpu; a CPU whose
// topology cannot be read counts as a core of its own.
std::vector<int> one_per_core(const std::vector<int>& cpus, const std::string& cpu_root);

// Whole CPUs allowed by the cgroup quota (v2 cpu.max, v1 cpu.cfs_quota_us), rounded down, at least 1; 0: no
// quota. `proc_cgroup` is /proc/self/cgroup, `cgroup_root` is /sys/fs/cgroup.
int quota_cpus(const std::string& proc_cgroup, const std::string& cgroup_root);

}  // namespace braid
