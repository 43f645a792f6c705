// compression_flags.cpp -- see compression_flags.h.
#include "cli/options/compression_flags.h"

#include <fmt/format.h>

#include "cli/options/option_group.h"

namespace braid::cli {
namespace {

constexpr int kLeastContext = 2048;

}  // namespace

void add_compression_options(CLI::App& command, CompressionFlags& flags) {
  OptionGroup group(command, "Compression of long prompts (loses text)");
  group
      .add("--prefill-drafter", flags.drafter,
           "small model that reads long prompts and chooses what is kept of them; builtin: the toy "
           "model inside of this program")
      ->type_name("FILE");
  group
      .add("--prefill-compression", flags.mode,
           "which prompts are compressed: those above the threshold (auto), all but short ones "
           "(always), or only those that ask by the header x-braid-compression (off)")
      ->check(CLI::IsMember({"off", "auto", "always"}))
      ->default_str("auto with a drafter, else off");
  group
      .add("--prefill-threshold", flags.threshold_tokens,
           "tokens of a conversation from which auto compresses it")
      ->check(CLI::Range(1024, 1 << 30))
      ->capture_default_str();
  group
      .add("--prefill-keep,--prefill-keep-ratio,--prefill-curve", flags.keep,
           "share of old and long messages to keep: auto (a tenth of prose, three tenths of code), "
           "0.05, or by length of the conversation, as in \"10000:0.5 40000:0.2\"")
      ->capture_default_str()
      ->type_name("SHARE");
  group
      .add("--prefill-context", flags.context_tokens,
           "tokens that the drafter reads at once; 0: its own context, at most 131072")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  add_drafter_sparse_option(group, flags.sparse_threshold);
}

void add_drafter_sparse_option(OptionGroup& group, std::optional<double>& threshold) {
  group
      .add("--prefill-drafter-sparse", threshold,
           fmt::format("the small model reads only the parts of a long prompt that promise "
                       "attention: blocks of 128 tokens with at least share T of the best block's "
                       "attention. An approximation. 0: off (default: {}, or 0 where it is not "
                       "possible and with --deterministic)",
                       server::kScorerSparseThreshold))
      ->type_name("T")
      ->check(CLI::Range(0.0, 1.0));
}

Result<std::optional<server::CompressionOptions>> compression_options(const CompressionFlags& flags,
                                                                      const std::string& device,
                                                                      int threads) {
  using server::CompressionMode;
  if (flags.drafter.empty()) {
    if (flags.mode.empty() || flags.mode == "off")
      return std::optional<server::CompressionOptions>();
    return Error{
        ErrorKind::invalid_argument,
        fmt::format("--prefill-compression {} needs a small model: --prefill-drafter", flags.mode)};
  }
  if (flags.context_tokens != 0 && flags.context_tokens < kLeastContext)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("--prefill-context {}: a model that reads less than {} tokens at once "
                             "sees too little of a conversation",
                             flags.context_tokens, kLeastContext)};
  server::CompressionOptions out;
  const auto keep = KeepCurve::parse(flags.keep);
  if (!keep.ok())
    return Error{ErrorKind::invalid_argument, "--prefill-keep: " + keep.error().message};
  out.compressor.keep = *keep;
  out.compressor.mode = flags.mode == "off"      ? CompressionMode::off
                        : flags.mode == "always" ? CompressionMode::always
                                                 : CompressionMode::automatic;
  out.compressor.threshold_tokens = flags.threshold_tokens;
  out.context_tokens = flags.context_tokens;
  if (flags.sparse_threshold) out.sparse_threshold = static_cast<float>(*flags.sparse_threshold);
  out.file = flags.drafter == kBuiltInDrafter ? "" : flags.drafter;
  out.device = device;
  out.threads = threads;
  return std::optional(std::move(out));
}

}  // namespace braid::cli
