// request_fields_test.cpp -- the table of fields matches the readers and the documentation.
#include "server/api/request_fields.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "server/api/field_trace.h"
#include "server/api/read_request.h"

namespace braid::server {
namespace {

constexpr Endpoint kEveryEndpoint[] = {Endpoint::chat, Endpoint::completions, Endpoint::responses,
                                       Endpoint::messages};

// The names that the endpoint's reader looks up in a plain request.
std::set<std::string> asked(Endpoint endpoint) {
  const FieldTrace trace;
  const Json turns = Json::array({{{"role", "user"}, {"content", "hi"}}});
  switch (endpoint) {
    case Endpoint::chat:
      EXPECT_TRUE(read_chat({{"messages", turns}}, {}).ok());
      EXPECT_TRUE(read_chat({{"messages", turns}, {"tool_choice", "none"}}, {}).ok());
      break;
    case Endpoint::completions:
      EXPECT_TRUE(read_completions({{"prompt", "hi"}}, {}).ok());
      break;
    case Endpoint::responses:
      EXPECT_TRUE(read_responses({{"input", "hi"}}, {}).ok());
      break;
    case Endpoint::messages:
      EXPECT_TRUE(read_messages({{"max_tokens", 10}, {"messages", turns}}, {}).ok());
      break;
  }
  return trace.names();
}

std::set<std::string> fields_in(FieldState state, Endpoint endpoint) {
  std::set<std::string> out;
  for (const KnownField& field : known_fields()) {
    if (field.state == state && field.endpoint == endpoint) out.insert(std::string(field.name));
  }
  return out;
}

std::string documentation() {
  std::ifstream file(BRAID_SOURCE_DIR "/docs/reference/api.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(RequestFields, ReadersAskForWhatTheTableCallsRead) {
  for (const Endpoint endpoint : kEveryEndpoint) {
    EXPECT_EQ(asked(endpoint), fields_in(FieldState::read, endpoint)) << endpoint_path(endpoint);
  }
}

TEST(RequestFields, AFieldHasOneStateForAnEndpoint) {
  for (const KnownField& field : known_fields()) {
    EXPECT_EQ(field_state(field.name, field.endpoint), field.state) << field.name;
  }
  EXPECT_EQ(field_state("nobodys_field", Endpoint::chat), FieldState::unknown);
  EXPECT_EQ(field_state("messages", Endpoint::completions), FieldState::unknown);
}

TEST(RequestFields, TheDocumentationNamesWhatIsNotObeyed) {
  const std::string text = documentation();
  for (const KnownField& field : known_fields()) {
    if (field.state == FieldState::read) continue;
    const std::string name = "`" + std::string(field.name);
    const bool named =
        text.find(name + "`") != std::string::npos || text.find(name + ":") != std::string::npos;
    EXPECT_TRUE(named) << "docs/reference/api.md does not name " << field.name;
  }
}

// Many unknown members cost one sort, not a search per name.
TEST(RequestFields, ManyMembersMakeNoReadSlow) {
  constexpr size_t kMembers = 50'000;
  Json::object_t members;
  for (size_t i = 0; i < kMembers; ++i)
    static_cast<std::vector<Json::object_t::value_type>&>(members).emplace_back(
        "x" + std::to_string(i), 1);
  Json body(std::move(members));
  body["prompt"] = "hi";
  const FieldTrace trace;
  EXPECT_TRUE(read_completions(body, {}).ok());
  EXPECT_GT(trace.compared(), kMembers);
  EXPECT_LT(trace.compared(), 40 * kMembers);
}

}  // namespace
}  // namespace braid::server
