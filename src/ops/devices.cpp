// devices.cpp -- see devices.h.
#include "ops/devices.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace braid {

namespace {

std::vector<std::unique_ptr<Device>> list_of(std::unique_ptr<Device> only) {
  std::vector<std::unique_ptr<Device>> list;
  list.push_back(std::move(only));
  return list;
}

}  // namespace

Devices::Devices(std::unique_ptr<Device> only) : Devices(list_of(std::move(only))) {}

Devices::Devices(std::vector<std::unique_ptr<Device>> list, int32_t ranks)
    : owned_(std::move(list)), ranks_(ranks) {
  BRAID_CHECK(!owned_.empty() && ranks > 0 && owned_.size() % static_cast<size_t>(ranks) == 0);
  traits_ = owned_[0]->traits();
  for (const auto& device : owned_) {
    pointers_.push_back(device.get());
    const DeviceTraits own = device->traits();
    traits_.host_visible &= own.host_visible;
    traits_.rows_alone &= own.rows_alone;
    traits_.asynchronous |= own.asynchronous;
    traits_.own_memory |= own.own_memory;
    traits_.records |= own.records;
    traits_.expert_slots |= own.expert_slots;
  }
  last_of_device_.resize(owned_.size());
  fences_.resize(owned_.size());
}

std::string Devices::description() const {
  std::string text;
  for (const Device* device : pointers_) text += (text.empty() ? "" : ", ") + device->description();
  return text;
}

std::string Devices::numerics() const {
  std::string text = pointers_[0]->numerics();
  for (size_t i = 1; i < pointers_.size(); ++i)
    if (pointers_[i]->numerics() != pointers_[i - 1]->numerics())
      text += "|" + std::to_string(i) + " " + pointers_[i]->numerics();
  return text;
}

void Devices::synchronize() {
  for (Device* device : pointers_) device->synchronize();
}

uint64_t Devices::fence() {
  const uint64_t number = ++last_fence_;
  for (size_t i = 0; i < pointers_.size(); ++i)
    fences_[i][number % Device::kFences] = pointers_[i]->fence();
  return number;
}

void Devices::wait_for(uint64_t fence) {
  BRAID_CHECK(fence <= last_fence_ && last_fence_ - fence < Device::kFences);
  for (size_t i = 0; i < pointers_.size(); ++i)
    pointers_[i]->wait_for(fences_[i][fence % Device::kFences]);
}

Status Devices::health() const {
  for (const Device* device : pointers_) BRAID_TRY(device->health());
  return {};
}

uint64_t Devices::copy_beside(std::span<std::vector<Device::Copy>> lists) {
  BRAID_CHECK(lists.size() == pointers_.size());
  if (pointers_.size() == 1) {
    const uint64_t number = pointers_[0]->copy_beside(lists[0]);
    lists[0].clear();
    return number;
  }
  bool waits = false;
  for (size_t i = 0; i < lists.size(); ++i) {
    if (lists[i].empty()) continue;
    if (traits_.asynchronous && !pointers_[i]->traits().asynchronous) wait_for_copies(last_copies_);
    const uint64_t number = pointers_[i]->copy_beside(lists[i]);
    lists[i].clear();
    if (number == 0) continue;
    last_of_device_[i] = number;
    waits = true;
  }
  if (!waits) return last_copies_;
  copies_.push_back({++last_copies_, last_of_device_});
  return last_copies_;
}

uint64_t Devices::copies_done() {
  if (pointers_.size() == 1) return pointers_[0]->copies_done();
  while (!copies_.empty()) {
    const std::vector<uint64_t>& wanted = copies_.front().last_of_device;
    for (size_t i = 0; i < wanted.size(); ++i)
      if (pointers_[i]->copies_done() < wanted[i]) return copies_.front().number - 1;
    copies_.pop_front();
  }
  return last_copies_;
}

const Devices::Copies* Devices::find(uint64_t number) const {
  const auto after = std::upper_bound(
      copies_.begin(), copies_.end(), number,
      [](uint64_t wanted, const Copies& copies) { return wanted < copies.number; });
  return after == copies_.begin() ? nullptr : &*std::prev(after);
}

void Devices::order_after_copies(uint64_t number) {
  if (pointers_.size() == 1) return pointers_[0]->order_after_copies(number);
  if (const Copies* copies = find(number))
    for (size_t i = 0; i < pointers_.size(); ++i)
      pointers_[i]->order_after_copies(copies->last_of_device[i]);
}

void Devices::wait_for_copies(uint64_t number) {
  if (pointers_.size() == 1) return pointers_[0]->wait_for_copies(number);
  if (const Copies* copies = find(number))
    for (size_t i = 0; i < pointers_.size(); ++i)
      pointers_[i]->wait_for_copies(copies->last_of_device[i]);
}

void move_rows(Device& to_device, Tensor to, Device& from_device, Tensor from) {
  const bool to_host = to_device.traits().host_visible;
  if (to_host == from_device.traits().host_visible) return to_device.receive(to, from_device, from);
  BRAID_CHECK(to.rows == from.rows && to.stride == from.stride && to.stride == to.cols);
  const size_t bytes = static_cast<size_t>(to.rows * to.cols) * sizeof(float);
  if (!to_host) return to_device.to_device(to.data, from.data, bytes);
  from_device.to_host(to.data, from.data, bytes);
  from_device.synchronize();
}

}  // namespace braid
