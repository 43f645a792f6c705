// compressing_rewriter.cpp -- see compressing_rewriter.h.
#include "server/proxy/compressing_rewriter.h"

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <map>
#include <mutex>
#include <utility>

#include "base/guard.h"
#include "base/log.h"
#include "engine/service.h"
#include "server/endpoints/compression.h"
#include "server/endpoints/tenant.h"
#include "server/http/http_rules.h"
#include "server/proxy/body_texts.h"

namespace braid::server {
namespace {

constexpr size_t kThreads = 2;

std::string_view header_of(const Headers& headers, std::string_view name) {
  for (const auto& [each, value] : headers)
    if (same_name(each, name)) return value;
  return {};
}

// Clients with different keys of the upstream do not share what was shortened.
std::string tenant_of(const RewriteRequest& request) {
  std::string keys;
  for (const char* name : {"Authorization", "x-api-key", "api-key"}) {
    keys += header_of(request.headers, name);
    keys += '\n';
  }
  return request.tenant + cache_tenant(keys);
}

class CompressingRewriter : public BodyRewriter {
  struct Work {
    RewriteRequest request;
    Done done;
    Ticket ticket = 0;
    BodyTexts texts;
    CompressionPlan plan;
    RequestId scoring = 0;  // guarded by mutex_; 0: none, or not known yet
    bool gone = false;      // guarded by mutex_
  };
  using Shared = std::shared_ptr<Work>;

 public:
  explicit CompressingRewriter(LoadedScorer scorer)
      : file_(std::move(scorer.file)),
        compressor_(std::move(scorer.compressor)),
        service_(EngineService::start(nullptr, {}, std::move(scorer.scorer))),
        pool_(kThreads) {}
  // The pool's threads use the service, so they end first. Then the service calls those that wait,
  // whose work is dropped with the pool.
  ~CompressingRewriter() override {
    pool_.stop();
    pool_.join();
    service_.reset();
  }

  Ticket rewrite(RewriteRequest request, Done done) override {
    const auto work = std::make_shared<Work>();
    work->request = std::move(request);
    work->done = std::move(done);
    {
      const std::lock_guard lock(mutex_);
      work->ticket = ++last_ticket_;
      working_[work->ticket] = work;
    }
    const Ticket ticket = work->ticket;
    run(work, [this, work] { begin(work); });
    return ticket;
  }

  void cancel(Ticket ticket) override {
    Shared work;  // perhaps the last one, which is dropped without the lock
    const std::lock_guard lock(mutex_);
    const auto found = working_.find(ticket);
    if (found == working_.end()) return;
    work = found->second.lock();
    working_.erase(found);
    if (work == nullptr) return;
    work->gone = true;
    if (work->scoring != 0) service_->cancel_score(work->scoring);
  }

 private:
  // Without memory the work is dropped, and with it the last copy of `done`.
  template <typename Step>
  void run(const Shared& work, Step step) {
    boost::asio::post(pool_, [this, work, step = std::move(step)] {
      if (is_gone(*work)) return;
      if (guarded("a request's compression", step) != Guarded::fine) forget(work);
    });
  }

  bool is_gone(const Work& work) {
    const std::lock_guard lock(mutex_);
    return work.gone;
  }

  void begin(const Shared& work) {
    RewriteRequest& request = work->request;
    CompressionChoice choice{compressor_->options().mode, {}};
    bool insists = false;
    if (const auto asked = header_of(request.headers, kCompressionHeader); !asked.empty()) {
      auto parsed = CompressionChoice::parse(asked);
      if (!parsed.ok()) {
        RewrittenBody refused;
        refused.refusal = invalid_value(std::string(kCompressionHeader), parsed.error().message);
        return end(work, std::move(refused));
      }
      choice = std::move(*parsed);
      insists = choice.mode == CompressionMode::always;
    }
    if (choice.mode == CompressionMode::off) return pass(work, "");
    auto texts = texts_of_body(request.path, request.body);
    if (!texts || (texts->has_form && !insists)) return pass(work, "none");
    work->texts = std::move(*texts);
    std::vector<ConversationText> conversation;
    for (const BodyText& text : work->texts.texts) conversation.push_back({text.role, text.text});
    CompressionWish wish;
    wish.mode = choice.mode;
    wish.keep = choice.keep;
    wish.tenant = tenant_of(request);
    auto plan = compressor_->plan(conversation, wish);
    if (!plan.ok()) return fail(work, plan.error());
    work->plan = std::move(*plan);
    go_on(work);
  }

  void go_on(const Shared& work) {
    if (work->plan.to_read() == nullptr) return finish(work);
    PromptToScore prompt;
    prompt.client = work->request.client;
    prompt.ids = work->plan.to_read()->ids;
    prompt.done = [this, work](Result<std::vector<float>> scores) {
      const auto shared = std::make_shared<const Result<std::vector<float>>>(std::move(scores));
      run(work, [this, work, shared] {
        if (!shared->ok()) return fail(work, shared->error());
        compressor_->take_scores(work->plan, **shared);
        go_on(work);
      });
    };
    const std::lock_guard lock(mutex_);
    if (work->gone) return;
    const auto id = service_->score(std::move(prompt));
    if (id.ok()) {
      work->scoring = *id;
    } else {
      run(work, [this, work, error = id.error()] { fail(work, error); });
    }
  }

  void finish(const Shared& work) {
    const CompressionPlan& plan = work->plan;
    if (!plan.changes()) return pass(work, "none");
    RewrittenBody out;
    out.body = with_texts(work->request.body, work->texts.texts, plan.texts);
    out.changed = true;
    out.answer_headers = {{std::string(kCompressionHeader), plan.note()}};
    end(work, std::move(out));
  }

  void fail(const Shared& work, const Error& error) {
    if (error.kind != ErrorKind::cancelled)
      spdlog::warn("a request passes uncompressed: {}", error.message);
    pass(work, "failed");
  }

  // As it came, byte for byte.
  void pass(const Shared& work, const char* note) {
    RewrittenBody out;
    out.body = std::move(work->request.body);
    if (*note != '\0') out.answer_headers = {{std::string(kCompressionHeader), note}};
    end(work, std::move(out));
  }

  void end(const Shared& work, RewrittenBody body) {
    forget(work);
    const Done done = std::exchange(work->done, nullptr);
    if (done) done(std::move(body));
  }

  void forget(const Shared& work) {
    const std::lock_guard lock(mutex_);
    working_.erase(work->ticket);
  }

  const std::shared_ptr<const GgufFile> file_;
  const std::shared_ptr<ConversationCompressor> compressor_;
  std::mutex mutex_;
  Ticket last_ticket_ = 0;                         // guarded by mutex_
  std::map<Ticket, std::weak_ptr<Work>> working_;  // guarded by mutex_
  std::unique_ptr<EngineService> service_;
  boost::asio::thread_pool pool_;
};

}  // namespace

Result<std::shared_ptr<BodyRewriter>> make_compressing_rewriter(GgufFile file,
                                                                const CompressionOptions& options) {
  BRAID_ASSIGN(auto scorer, load_scorer(std::move(file), options, false));
  return std::shared_ptr<BodyRewriter>(std::make_shared<CompressingRewriter>(std::move(scorer)));
}

}  // namespace braid::server
