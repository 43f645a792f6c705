// cores.cpp -- affinity mask, core topology and cgroup quota (cores.h).

#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/threads.h"

namespace braid {
namespace {

// "0-3,8,10-11" -> 0 1 2 3 8 10 11. Stops at the first malformed item.
std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> out;
  std::istringstream in(text);
  int first;
  while (in >> first) {
    int last = first;
    if (in.peek() == '-') {
      in.ignore();
      if (!(in >> last)) break;
    }
    if (first < 0 || last < first || last > 1 << 20) break;
    for (int cpu = first; cpu <= last; cpu++) out.push_back(cpu);
    if (in.peek() != ',') break;
    in.ignore();
  }
  return out;
}

bool read_line(const std::string& path, std::string* line) {
  std::ifstream in(path);
  return static_cast<bool>(std::getline(in, *line));
}

void tighten(int* limit, long long quota, long long period) {
  if (quota <= 0 || period <= 0) return;
  const int cpus = static_cast<int>(std::clamp<long long>(quota / period, 1, 1 << 20));
  if (*limit == 0 || cpus < *limit) *limit = cpus;
}

void read_quota(const std::string& folder, int* limit) {
  std::string line;
  if (read_line(folder + "/cpu.max", &line)) {
    std::istringstream in(line);
    long long quota, period;
    if (in >> quota >> period)
      tighten(limit, quota, period);  // "max 100000" fails to parse: no limit
  }
  std::string quota, period;
  if (read_line(folder + "/cpu.cfs_quota_us", &quota) &&
      read_line(folder + "/cpu.cfs_period_us", &period)) {
    std::istringstream in(quota + " " + period);
    long long quota_us, period_us;
    if (in >> quota_us >> period_us) tighten(limit, quota_us, period_us);
  }
}

// A quota holds for a group and all groups below it, so each ancestor counts.
void read_quota_chain(const std::string& root, std::string path, int* limit) {
  while (true) {
    read_quota(root + path, limit);
    const size_t slash = path.find_last_of('/');
    if (path.empty() || slash == std::string::npos) break;
    path.resize(slash);
  }
  read_quota(root, limit);
}

}  // namespace

namespace {

std::vector<int> read_affinity() {
  std::vector<int> out;
  for (int count = 1024; count <= 1 << 18; count *= 4) {
    cpu_set_t* set = CPU_ALLOC(count);
    if (set == nullptr) break;
    const size_t size_bytes = CPU_ALLOC_SIZE(count);
    CPU_ZERO_S(size_bytes, set);
    const bool ok = sched_getaffinity(0, size_bytes, set) == 0;
    for (int cpu = 0; ok && cpu < count; cpu++) {
      if (CPU_ISSET_S(cpu, size_bytes, set)) out.push_back(cpu);
    }
    CPU_FREE(set);
    if (ok) break;  // fails while the set is smaller than the kernel's mask
  }
  if (out.empty()) out.push_back(0);
  return out;
}

}  // namespace

const std::vector<int>& affinity_cpus() {
  static const std::vector<int> cpus = read_affinity();
  return cpus;
}

std::vector<int> one_per_core(const std::vector<int>& cpus, const std::string& cpu_root) {
  std::vector<int> out;
  std::vector<int> taken;  // siblings of CPUs already chosen
  for (const int cpu : cpus) {
    if (std::find(taken.begin(), taken.end(), cpu) != taken.end()) continue;
    out.push_back(cpu);
    std::string line;
    if (read_line(cpu_root + "/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
                  &line)) {
      const std::vector<int> siblings = parse_cpu_list(line);
      taken.insert(taken.end(), siblings.begin(), siblings.end());
    }
  }
  return out;
}

int quota_cpus(const std::string& proc_cgroup, const std::string& cgroup_root) {
  int limit = 0;
  std::ifstream in(proc_cgroup);
  std::string line;
  while (std::getline(in, line)) {  // hierarchy:controllers:path
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers.empty()) {
      read_quota_chain(cgroup_root, path, &limit);
      continue;
    }
    std::istringstream names("," + controllers + ",");
    if (names.str().find(",cpu,") == std::string::npos) continue;
    read_quota_chain(cgroup_root + "/cpu", path, &limit);
    read_quota_chain(cgroup_root + "/" + controllers, path, &limit);
  }
  return limit;
}

int usable_cores() {
  int cores = static_cast<int>(one_per_core(affinity_cpus(), "/sys/devices/system/cpu").size());
  const int quota = quota_cpus("/proc/self/cgroup", "/sys/fs/cgroup");
  if (quota > 0) cores = std::min(cores, quota);
  return std::max(cores, 1);
}

}  // namespace braid
