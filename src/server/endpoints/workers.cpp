// workers.cpp -- see workers.h.
#include "server/endpoints/workers.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "base/log.h"

namespace braid::server {

namespace {

constexpr size_t kLargeBodyBytes = size_t{2} << 20;

}  // namespace

Workers::Workers(int threads, Refuse refuse)
    : refuse_(std::move(refuse)),
      threads_(static_cast<size_t>(std::max(2, threads))),
      large_(threads_.get_executor()) {}

void Workers::run(const std::shared_ptr<Exchange>& exchange, Work work) {
  ++pending_;
  const auto run = [this, exchange, work = std::move(work)] {
    std::optional<ApiError> error;
    try {
      error = work();
    } catch (const std::exception& exception) {
      spdlog::error("request {} failed: {}", exchange->request().id, exception.what());
      error = internal_error("the request could not be worked on");
    }
    --pending_;
    if (error) refuse_(exchange, *error);
  };
  if (exchange->request().body.size() >= kLargeBodyBytes) {
    boost::asio::post(large_, run);
  } else {
    boost::asio::post(threads_, run);
  }
}

}  // namespace braid::server
