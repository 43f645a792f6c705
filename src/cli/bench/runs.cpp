// runs.cpp -- see runs.h.
#include "cli/bench/runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "cli/bench/ask.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "engine/sampler.h"

namespace braid::cli {

namespace {

using Score = std::function<void(int32_t position, std::span<const float> logits)>;

Status score_tokens(Engine& engine, const std::vector<int32_t>& tokens, int32_t first,
                    ProgressLine& progress, uint64_t done, uint64_t all, const Score& score) {
  Request request;
  request.prompt = tokens;
  request.max_tokens = 0;
  request.score_from = first;
  const auto last = static_cast<int32_t>(tokens.size()) - 1;
  request.score = [&](int32_t position, std::span<const float> logits) {
    if (position < last) score(position, logits);
  };
  const auto ran = run_request(engine, std::move(request), [&] { progress.update(done, all); });
  return ran.ok() ? Status() : Status(ran.error());
}

// The perplexity of the text's second half. `row` gets evenly spaced logits.
Result<double> score_text(Engine& engine, const ReportWork& work,
                          const std::function<void(std::span<const float>)>& row) {
  if (work.text.empty()) return 0;
  const auto first = static_cast<int32_t>(work.text.size() / 2);
  const auto count = static_cast<int32_t>(work.text.size()) - 1 - first;
  const int32_t step = std::max(1, count / ReportWork::kMostRows);
  double nll = 0;
  ProgressLine progress("next tokens");
  BRAID_TRY(score_tokens(engine, work.text, first, progress, 0, 1,
                         [&](int32_t position, std::span<const float> logits) {
                           nll -= log_probability(logits,
                                                  work.text[static_cast<size_t>(position) + 1]);
                           if ((position - first) % step == 0) row(logits);
                         }));
  return std::exp(nll / count);
}

Result<std::vector<std::vector<int32_t>>> answer_prompts(LoadedModel& model,
                                                         const ReportWork& work) {
  std::vector<std::vector<int32_t>> answers;
  ProgressLine progress("answers");
  for (size_t i = 0; i < work.prompts.size() && !interrupted(); ++i) {
    BRAID_ASSIGN(
        std::vector<int32_t> answer,
        greedy_answer(*model.engine, *model.tokenizer, work.prompts[i].tokens, work.answer_tokens,
                      [&] { progress.update(i, work.prompts.size()); }));
    answers.push_back(std::move(answer));
  }
  return answers;
}

// Scores the reference's answers after their prompts. `row` gets evenly spaced logits.
Status score_answers(Engine& engine, const ReportWork& work,
                     const std::vector<std::vector<int32_t>>& answers,
                     const std::function<void(std::span<const float>)>& row) {
  size_t all = 0, at = 0;
  for (const auto& answer : answers) all += answer.size();
  const size_t step = std::max<size_t>(1, all / ReportWork::kMostRows);
  ProgressLine progress("forced answers");
  for (size_t i = 0; i < answers.size() && !interrupted(); ++i) {
    std::vector<int32_t> tokens = work.prompts[i].tokens;
    if (answers[i].empty()) continue;
    const auto first = static_cast<int32_t>(tokens.size()) - 1;
    tokens.insert(tokens.end(), answers[i].begin(), answers[i].end());
    BRAID_TRY(score_tokens(engine, tokens, first, progress, i, answers.size(),
                           [&](int32_t, std::span<const float> logits) {
                             if (at++ % step == 0) row(logits);
                           }));
  }
  return {};
}

std::vector<AnswerFigures> judge(const LoadedModel& model, const ReportWork& work,
                                 const std::vector<std::vector<int32_t>>& wanted,
                                 const std::vector<std::vector<int32_t>>& answers) {
  std::vector<AnswerFigures> sets;
  for (size_t i = 0; i < work.prompts.size(); ++i) {
    const ReportPrompt& prompt = work.prompts[i];
    if (sets.empty() || sets.back().set != prompt.set) sets.emplace_back().set = prompt.set;
    AnswerFigures& set = sets.back();
    ++set.prompts;
    set.same += answers[i] == wanted[i];
    if (prompt.wanted.empty()) continue;
    const std::string text = model.tokenizer->decode(answers[i]);
    const bool right = text.find(prompt.wanted) != std::string::npos;
    set.right = std::max(set.right, 0) + (right ? 1 : 0);
    set.marks += right ? '+' : '-';
  }
  return sets;
}

}  // namespace

Result<std::optional<ReportReference>> run_reference(const ModelFlags& flags,
                                                     const ReportWork& work) {
  BRAID_ASSIGN(LoadedModel model, load_model(flags));
  ReportReference out;
  BRAID_ASSIGN(out.perplexity, score_text(*model.engine, work, [&](std::span<const float> logits) {
                 out.text_rows.emplace_back(logits.begin(), logits.end());
               }));
  BRAID_ASSIGN(out.answers, answer_prompts(model, work));
  BRAID_TRY(score_answers(*model.engine, work, out.answers, [&](std::span<const float> logits) {
    out.answer_rows.emplace_back(logits.begin(), logits.end());
  }));
  if (interrupted()) return std::optional<ReportReference>();
  return std::optional(std::move(out));
}

Result<bool> run_format(const ModelFlags& flags, const ReportWork& work,
                        const ReportReference& reference, FormatFigures& figures) {
  BRAID_ASSIGN(LoadedModel model, load_model(flags));
  LogitQuality text, forced;
  size_t row = 0;
  BRAID_ASSIGN(figures.perplexity,
               score_text(*model.engine, work, [&](std::span<const float> logits) {
                 text.add(reference.text_rows[row++], logits);
               }));
  if (!work.text.empty()) figures.text = text.summary();
  BRAID_ASSIGN(const auto answers, answer_prompts(model, work));
  if (interrupted()) return false;
  row = 0;
  BRAID_TRY(score_answers(
      *model.engine, work, reference.answers,
      [&](std::span<const float> logits) { forced.add(reference.answer_rows[row++], logits); }));
  if (interrupted()) return false;
  if (!work.prompts.empty()) figures.answers = forced.summary();
  figures.sets = judge(model, work, reference.answers, answers);
  return true;
}

}  // namespace braid::cli
