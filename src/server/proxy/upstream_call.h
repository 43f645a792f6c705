// upstream_call.h -- one call to the upstream, on the loop of its pool.
// Phases: connecting, waiting (for the head), body, ended. The read decides what becomes of a call:
// an upstream may answer and close before it has read the whole request, so a failed write waits.
// Each operation holds its call and its transport. If the call has another transport by then, the
// operation has no effect.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/proxy/upstream_client.h"
#include "server/proxy/upstream_pool.h"
#include "server/proxy/upstream_reader.h"

namespace braid::server {

class CallOfPool : public UpstreamCall, public std::enable_shared_from_this<CallOfPool> {
 public:
  CallOfPool(std::shared_ptr<UpstreamPool> pool, UpstreamRequest request,
             std::shared_ptr<UpstreamSink> sink);
  // A probe: ends after the handshake.
  CallOfPool(std::shared_ptr<UpstreamPool> pool,
             std::function<void(std::optional<UpstreamFault>)> probed);
  ~CallOfPool() override;

  // On the loop, once.
  void start();
  void more() override;
  void cancel() override;
  // On the loop, or after it has ended: as cancel(), at once.
  void leave();

 private:
  using ErrorCode = boost::system::error_code;
  using Tcp = boost::asio::ip::tcp;
  enum class Phase { connecting, waiting, body, ended };

  template <typename Work>
  void guard(Work work) noexcept;

  void connect();
  void connect_to(const std::vector<Tcp::endpoint>& ends);
  void connected(const ErrorCode& error);
  void send_request(std::shared_ptr<Transport> transport, bool kept);
  void write(const std::string& bytes, std::function<void()> then);
  void read();
  void read_done(const ErrorCode& error, size_t bytes);
  void advance();
  void broken(std::string what);
  void complete();
  void fail(UpstreamFault::Kind kind, std::string message);
  void set_deadline(int64_t ms);
  void too_late();
  void free_body();

  const std::shared_ptr<UpstreamPool> pool_;
  std::shared_ptr<UpstreamSink> sink_;
  std::function<void(std::optional<UpstreamFault>)> probed_;
  UpstreamRequest request_;
  std::string head_;  // of the request, as it is sent

  Phase phase_ = Phase::connecting;
  Tcp::resolver resolver_;
  Tcp::socket socket_;  // while it connects
  std::shared_ptr<Transport> transport_;
  boost::asio::steady_timer timer_;
  std::optional<UpstreamReader> reader_;
  std::string arriving_;
  bool kept_ = false;                       // the connection had served another call
  bool sent_ = false;                       // the whole request
  bool reading_ = false, writing_ = false;  // pending
  bool paused_ = false;                     // until more()
};

}  // namespace braid::server
