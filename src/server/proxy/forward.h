// forward.h -- one request on its way: perhaps rewritten, then sent to the upstream, whose answer
// goes to the client as it comes.
// Phases: rewriting, waiting (for the upstream's head), streaming, ended. A piece of the answer is
// read only when all but kUnsentBytes of the ones before were sent.
// If the client disconnects, the rewriting and the call end at once. If the upstream fails before
// its head, the client gets a 502 or 504. Later its connection is closed without the end of the
// answer; an event stream between two events first gets an error event of its API.
// Threads: the exchange's strand. The sink's functions are called on the upstream client's thread
// and go to the strand. It lives while the rewriter, the call or the exchange holds it.
#pragma once

#include <memory>
#include <string>

#include "server/http/http.h"
#include "server/proxy/proxy_context.h"

namespace braid::server {

class Forward : public UpstreamSink, public std::enable_shared_from_this<Forward> {
 public:
  static constexpr size_t kUnsentBytes = size_t{256} << 10;

  Forward(ProxyContext& context, std::shared_ptr<Exchange> exchange)
      : context_(context), exchange_(std::move(exchange)) {}

  void start();

  void head(UpstreamHead head) override;
  void data(std::string bytes) override;
  void done() override;
  void failed(UpstreamFault fault) override;

 private:
  enum class Phase { rewriting, waiting, streaming, ended };

  bool rewrites() const;
  void rewrite();
  void rewritten(RewrittenBody body);
  void send(std::string body);
  void begin(UpstreamHead head);
  void pass(std::string bytes);
  void fail(const UpstreamFault& fault);
  void break_off(const ApiError& error);
  void refuse(const ApiError& error);
  void give_up();

  ProxyContext& context_;  // used on the strand alone, so not after HttpServer::stop()
  const std::shared_ptr<Exchange> exchange_;
  Phase phase_ = Phase::rewriting;
  BodyRewriter::Ticket ticket_ = 0;
  bool rewriting_ = false;  // ticket_ is of use
  Headers answer_headers_;  // of the rewriter
  std::shared_ptr<UpstreamCall> call_;
  bool events_ = false;  // the answer is an event stream
  std::string tail_;     // its last bytes
};

}  // namespace braid::server
