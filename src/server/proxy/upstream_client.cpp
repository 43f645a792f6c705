// upstream_client.cpp -- see upstream_client.h: the thread, and its end.
#include "server/proxy/upstream_client.h"

#include <pthread.h>

#include <boost/asio/executor_work_guard.hpp>
#include <chrono>
#include <thread>
#include <utility>

#include "base/guard.h"
#include "server/proxy/upstream_call.h"
#include "server/proxy/upstream_pool.h"

namespace braid::server {
namespace {

class LoopClient : public UpstreamClient {
 public:
  explicit LoopClient(const UpstreamOptions& options)
      : pool_(std::make_shared<UpstreamPool>(options)), work_(pool_->loop().get_executor()) {}
  ~LoopClient() override { stop(); }

  Status open() {
    if (pool_->options.url.secure) BRAID_TRY(pool_->load_certificates());
    thread_ = std::thread([pool = pool_] {
      ::pthread_setname_np(::pthread_self(), "upstream");
      const auto turn = [&] { pool->loop().run(); };
      while (guarded("upstream", turn) != Guarded::fine)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    });
    return {};
  }

  std::shared_ptr<UpstreamCall> send(UpstreamRequest request,
                                     std::shared_ptr<UpstreamSink> sink) override {
    auto call = std::make_shared<CallOfPool>(pool_, std::move(request), std::move(sink));
    pool_->post([call] { call->start(); });
    return call;
  }
  void probe(std::function<void(std::optional<UpstreamFault>)> done) override {
    pool_->post([call = std::make_shared<CallOfPool>(pool_, std::move(done))] { call->start(); });
  }
  UpstreamLoad load() const override {
    return {pool_->running, pool_->idle_connections, pool_->opened_connections};
  }

  void stop() override {
    if (!thread_.joinable()) return;
    pool_->loop().stop();
    thread_.join();
    // Single-threaded now. What was posted still runs, so that nothing in the loop holds the pool.
    pool_->close();
    work_.reset();
    pool_->loop().restart();
    const auto turn = [&] {
      do {
        while (!pool_->calls.empty()) std::shared_ptr(*pool_->calls.begin())->leave();
      } while (pool_->loop().poll() > 0);
    };
    while (guarded("upstream", turn) != Guarded::fine) {
    }
  }

 private:
  const std::shared_ptr<UpstreamPool> pool_;
  boost::asio::executor_work_guard<HttpStrand> work_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<UpstreamClient>> UpstreamClient::start(const UpstreamOptions& options) {
  auto client = std::make_unique<LoopClient>(options);
  BRAID_TRY(client->open());
  return std::unique_ptr<UpstreamClient>(std::move(client));
}

}  // namespace braid::server
