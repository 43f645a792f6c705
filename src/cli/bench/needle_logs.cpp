// needle_logs.cpp -- the filler of log lines (needle_filler.h).
#include <fmt/format.h>

#include <chrono>

#include "cli/bench/needle_filler.h"
#include "cli/bench/needle_grammar.h"

namespace braid::cli {
namespace {

using LogWords = std::string_view[];

constexpr int64_t kLogStartMs = 1'935'630'000'000;  // a day in May 2031

constexpr LogWords kLogServices = {"gateway", "billing", "search", "mailer",
                                   "catalog", "auth",    "images", "scheduler"};
constexpr LogWords kLogHosts = {"ams-1", "ams-2", "fra-1", "sgp-1", "iad-4", "gru-2"};
constexpr LogWords kLogPaths = {"/v1/items",   "/v1/orders",   "/v2/search",  "/health",
                                "/v1/session", "/v1/invoices", "/static/app", "/v2/preview"};
// $h: a host; $s: a service; $u: a path; $n: a number; $i: an id; $m: a fraction.
constexpr LogWords kLogPatterns = {
    R"("level":"info","msg":"request done","path":"$u","status":200,"ms":$n,"id":"$i")",
    R"("level":"info","msg":"request done","path":"$u","status":304,"ms":$n,"id":"$i")",
    R"("level":"warn","msg":"slow query","rows":$n,"ms":$n,"plan":{"scan":"index","cost":$m})",
    R"("level":"error","msg":"upstream refused","peer":"$s","attempt":$n,"id":"$i")",
    R"("level":"debug","msg":"cache","hit":true,"bytes":$n)",
    R"("level":"debug","msg":"cache","hit":false,"bytes":$n,"from":"$s")",
    R"("level":"info","msg":"job finished","job":"$s-$n","took_s":$m,"items":$n)",
    R"("level":"info","msg":"connection closed","peer":"$h","sent":$n,"received":$n)",
    R"("level":"warn","msg":"queue is long","depth":$n,"limits":[$n,$n])",
    R"("level":"info","msg":"gc","pause_ms":$m,"heap_mb":$n)",
    R"("level":"info","msg":"tick")",
};

class LogFiller : public FillerSource {
 public:
  explicit LogFiller(uint64_t seed) : random_(seed, 'l') {}

  void append(std::vector<FillerUnit>& out) override {
    clock_ms_ += static_cast<int64_t>(1 + random_.below(900));
    const std::string_view service = random_.pick(kLogServices), host = random_.pick(kLogHosts);
    const std::string fields =
        expand_pattern(random_.pick(kLogPatterns), [&](char name) -> std::string {
          switch (name) {
            case 'h':
              return std::string(random_.pick(kLogHosts));
            case 's':
              return std::string(random_.pick(kLogServices));
            case 'u':
              return std::string(random_.pick(kLogPaths));
            case 'n':
              return random_.digits(1 + static_cast<int>(random_.below(4)));
            case 'i':
              return random_.hex(8);
            case 'm':
              return "0." + random_.digits(3);
            default:
              return {};
          }
        });
    out.push_back({.text = fmt::format("{{\"ts\":\"{}\",\"service\":\"{}\",\"host\":\"{}\",{}}}\n",
                                       log_time(clock_ms_), service, host, fields),
                   .style = FactStyle::log,
                   .clock_ms = clock_ms_});
  }

  std::vector<FillerUnit> pads(const FillerUnit&) const override {
    std::vector<FillerUnit> out;
    for (const std::string_view text :
         {"{}", "{\"n\":1}", "{\"ok\":true}", "{\"gap\":[1,2]}", "{\"level\":\"debug\"}",
          "{\"msg\":\"no change\"}", "{\"msg\":\"still no change\"}", "{\"wait\":true,\"n\":2}",
          "{\"level\":\"debug\",\"n\":3}", "{\"level\":\"debug\",\"msg\":\"idle now\"}"}) {
      out.push_back(
          {.text = std::string(text) + "\n", .style = FactStyle::log, .clock_ms = clock_ms_});
    }
    return out;
  }

 private:
  NeedleRandom random_;
  int64_t clock_ms_ = kLogStartMs;
};

}  // namespace

std::string log_time(int64_t clock_ms) {
  const std::chrono::sys_time<std::chrono::milliseconds> time{std::chrono::milliseconds(clock_ms)};
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(day);
  const auto ms = (time - day).count();
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     ms / 3'600'000, ms / 60'000 % 60, ms / 1000 % 60, ms % 1000);
}

std::unique_ptr<FillerSource> make_log_filler(uint64_t seed) {
  return std::make_unique<LogFiller>(seed);
}

}  // namespace braid::cli
