// upstream_reader_test.cpp -- answers of an upstream, cut at every byte, and those that break HTTP.
#include "server/proxy/upstream_reader.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace braid::server {
namespace {

using Step = UpstreamReader::Step;

struct Outcome {
  int status = 0;
  std::optional<uint64_t> length;
  std::string body, fault;
  bool done = false, keep_alive = false;
  size_t fields = 0;
};

Outcome read_pieces(const std::vector<std::string>& pieces, bool end, bool to_head = false) {
  UpstreamReader reader(to_head);
  Outcome out;
  const auto advance = [&] {
    while (true) {
      switch (reader.advance()) {
        case Step::more:
          return;
        case Step::head: {
          const UpstreamHead head = reader.take_head();
          EXPECT_EQ(out.status, 0) << "a second head";
          out.status = head.status;
          out.length = head.length;
          out.fields = head.headers.size();
          break;
        }
        case Step::data:
          out.body += reader.take_data();
          break;
        case Step::done:
          out.done = true;
          out.keep_alive = reader.keep_alive();
          return;
        case Step::fault:
          out.fault = reader.fault();
          return;
      }
    }
  };
  for (const std::string& piece : pieces) {
    reader.append(piece);
    advance();
    if (out.done || !out.fault.empty()) return out;
  }
  if (end) {
    reader.end();
    advance();
  }
  return out;
}

// Whole, byte by byte, and in two pieces cut at every place.
Outcome read_every_way(const std::string& bytes, bool end, bool to_head = false) {
  const Outcome whole = read_pieces({bytes}, end, to_head);
  std::vector<std::vector<std::string>> ways(1);
  for (const char c : bytes) ways[0].emplace_back(1, c);
  for (size_t cut = 1; cut < bytes.size(); ++cut)
    ways.push_back({bytes.substr(0, cut), bytes.substr(cut)});
  for (const auto& way : ways) {
    const Outcome other = read_pieces(way, end, to_head);
    EXPECT_EQ(other.status, whole.status);
    EXPECT_EQ(other.body, whole.body);
    EXPECT_EQ(other.done, whole.done);
    EXPECT_EQ(other.fault.empty(), whole.fault.empty());
  }
  return whole;
}

TEST(UpstreamReader, ABodyWithALength) {
  const Outcome out = read_every_way(
      "HTTP/1.1 404 Gone Away\r\nContent-Length: 5\r\nX: y\r\nX: z\r\n\r\nabcde", false);
  EXPECT_EQ(out.status, 404);
  EXPECT_EQ(out.length, 5u);
  EXPECT_EQ(out.body, "abcde");
  EXPECT_TRUE(out.done && out.keep_alive);
  EXPECT_EQ(out.fields, 3u);
}

TEST(UpstreamReader, ChunksWithExtensionsAndTrailers) {
  const Outcome out = read_every_way(
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;a=b\r\nabc\r\n00002\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n",
      false);
  EXPECT_EQ(out.body, "abcde");
  EXPECT_FALSE(out.length);
  EXPECT_TRUE(out.done && out.keep_alive);
}

TEST(UpstreamReader, ABodyUntilTheEnd) {
  const Outcome out = read_every_way("HTTP/1.0 200 OK\r\n\r\nabcde", true);
  EXPECT_EQ(out.body, "abcde");
  EXPECT_TRUE(out.done);
  EXPECT_FALSE(out.keep_alive);
  EXPECT_FALSE(read_pieces({"HTTP/1.0 200 OK\r\n\r\nabcde"}, false).done);
}

TEST(UpstreamReader, NoBody) {
  for (const std::string head : {"HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 304 N\r\n\r\n",
                                 "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"}) {
    const Outcome out = read_every_way(head, false);
    EXPECT_TRUE(out.done && out.keep_alive) << head;
    EXPECT_EQ(out.body, "");
  }
  const Outcome out =
      read_every_way("HTTP/1.1 200 OK\r\nContent-Length: 700\r\n\r\n", false, /*to_head=*/true);
  EXPECT_TRUE(out.done);
  EXPECT_EQ(out.length, 700u);
}

TEST(UpstreamReader, InterimAnswersAreDropped) {
  const std::string interim =
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nL: x\r\n\r\n";
  const Outcome out =
      read_every_way(interim + "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", false);
  EXPECT_EQ(out.status, 200);
  EXPECT_EQ(out.body, "ok");
  EXPECT_TRUE(out.done);
  std::string endless;
  for (int i = 0; i < 100; ++i) endless += "HTTP/1.1 102 Processing\r\n\r\n";
  EXPECT_NE(read_pieces({endless}, false).fault, "");
  EXPECT_NE(read_pieces({"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"}, false).fault, "");
}

TEST(UpstreamReader, MoreThanTheAnswerEndsTheConnection) {
  const Outcome out =
      read_pieces({"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200"}, false);
  EXPECT_TRUE(out.done);
  EXPECT_EQ(out.body, "ok");
  EXPECT_FALSE(out.keep_alive);
}

TEST(UpstreamReader, WhatBreaksHttp) {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  for (const std::string& bytes : std::vector<std::string>{
           "garbage\r\n\r\n", "SSH-2.0-OpenSSH\r\n", std::string("\x16\x03\x01\x02\0", 5),
           "HTTP/2 200 OK\r\n\r\n", "HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 abc OK\r\n\r\n",
           ok + "No colon\r\n\r\n", ok + "A: b\rc\r\n\r\n", ok + "Content-Length: -1\r\n\r\n",
           ok + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
           ok + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
           ok + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
           ok + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
           ok + "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n",
           ok + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc"}) {
    const Outcome out = read_every_way(bytes, true);
    EXPECT_NE(out.fault, "") << bytes;
    EXPECT_FALSE(out.done) << bytes;
  }
}

TEST(UpstreamReader, AnEarlyEndIsAFault) {
  for (const std::string whole :
       {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"}) {
    for (size_t cut = 0; cut < whole.size(); ++cut) {
      const Outcome out = read_pieces({whole.substr(0, cut)}, true);
      EXPECT_FALSE(out.done) << cut;
      EXPECT_NE(out.fault, "") << cut;
    }
  }
}

TEST(UpstreamReader, BoundsWhatHasNoContent) {
  const std::string x(1000, 'x');
  std::string head = "HTTP/1.1 200 OK\r\n", fields = head;
  const std::string line = "HTTP/1.1 200 " + std::string(100'000, 'x');
  for (int i = 0; i < 100; ++i) head += "A: " + x + "\r\n";
  for (int i = 0; i < 300; ++i) fields += "A: b\r\n";
  const std::string chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  std::string extension = chunks + "1;", trailers = chunks + "0\r\n";
  for (int i = 0; i < 200; ++i) extension += x;
  for (int i = 0; i < 200; ++i) trailers += "A: " + x + "\r\n";
  for (const std::string& bytes : {head + "\r\n", fields + "\r\n", line, extension, trailers,
                                   chunks + std::string(200'000, '0')}) {
    std::vector<std::string> pieces;
    for (size_t at = 0; at < bytes.size(); at += 1500) pieces.push_back(bytes.substr(at, 1500));
    EXPECT_NE(read_pieces(pieces, false).fault, "") << bytes.substr(0, 80);
    EXPECT_NE(read_pieces({bytes}, false).fault, "") << bytes.substr(0, 80);
  }
}

TEST(UpstreamReader, TrustsNoPromisedLength) {
  const Outcome out =
      read_pieces({"HTTP/1.1 200 OK\r\nContent-Length: 9000000000000000000\r\n\r\nabc"}, false);
  EXPECT_EQ(out.body, "abc");
  EXPECT_EQ(out.length, 9'000'000'000'000'000'000u);
}

TEST(UpstreamReader, ReadsAnyBytes) {
  const std::string seed =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
  std::mt19937_64 random(1);
  for (int run = 0; run < 20'000; ++run) {
    std::string bytes = seed;
    for (int i = 0; i < 3; ++i) {
      const size_t at = random() % bytes.size();
      if (random() % 2 == 0) {
        bytes[at] = static_cast<char>(random());
      } else {
        bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 9));
      }
    }
    const size_t cut = random() % bytes.size();
    const Outcome whole = read_pieces({bytes}, true);
    const Outcome cutted = read_pieces({bytes.substr(0, cut), bytes.substr(cut)}, true);
    ASSERT_TRUE(whole.done || !whole.fault.empty());
    ASSERT_EQ(whole.done, cutted.done) << bytes;
  }
}

}  // namespace
}  // namespace braid::server
