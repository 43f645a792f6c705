// reader_writer_test.cpp -- a connection's parts without a socket: reader, writer, send queue.
#include <gtest/gtest.h>

#include <list>

#include "server/http/answer_writer.h"
#include "server/http/request_reader.h"
#include "server/http/send_queue.h"

namespace braid::server {
namespace {

TEST(SendQueue, GivesBackWhatWentInInPieces) {
  SendQueue queue;
  std::string wanted, got, piece;
  for (size_t round = 0; round < 400; ++round) {
    const std::string bytes(round * 37 % 5000 * (round % 50 == 0 ? 40 : 1),
                            static_cast<char>('a' + round % 26));
    wanted += bytes;
    queue.push(bytes);
    if (round % 3 == 0) {
      queue.take(7000, piece);
      EXPECT_LE(piece.size(), 7000u);
      got += piece;
    }
    ASSERT_EQ(queue.size(), wanted.size() - got.size());
  }
  while (!queue.empty()) {
    queue.take(100'000, piece);
    ASSERT_FALSE(piece.empty());
    got += piece;
  }
  EXPECT_EQ(got, wanted);
  queue.push("x");
  queue.clear();
  EXPECT_TRUE(queue.empty());
  queue.take(10, piece);
  EXPECT_EQ(piece, "");
}

TEST(SendQueue, AnAnswerOfMegabytesIsSentInLinearWork) {
  // 256 MiB in pieces of 4 KiB. Moving the rest each time would copy eight terabytes.
  SendQueue queue;
  queue.push(std::string(size_t{256} << 20, 'x'));
  std::string piece;
  size_t taken = 0;
  while (!queue.empty()) {
    queue.take(4096, piece);
    taken += piece.size();
  }
  EXPECT_EQ(taken, size_t{256} << 20);
}

using Outcome = RequestReader::Outcome;

struct Reading {
  HttpOptions options;
  std::shared_ptr<RequestMemory> memory = std::make_shared<RequestMemory>(size_t{1} << 20);
  RequestReader reader{options, memory, "client"};
  std::string client;  // the client charged for memory

  Reading() { reader.begin(); }

  Outcome feed(std::string_view bytes, size_t piece) {
    Outcome last = Outcome::more;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      reader.append(bytes.substr(at, piece));
      last = step();
      if (last != Outcome::more) break;
    }
    return last;
  }
  Outcome step() {
    Outcome outcome = reader.advance();
    if (outcome != Outcome::head) return outcome;
    reader.accept_body(client);
    return reader.advance();
  }
};

TEST(RequestReader, PiecesMakeNoDifference) {
  const std::string plain = "POST //a/b/?q=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
  const std::string chunked =
      "POST /a/b?q=1 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "
      "chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n";
  for (const std::string& bytes : {plain, chunked}) {
    for (const size_t piece : {size_t{1}, size_t{7}, bytes.size()}) {
      Reading reading;
      ASSERT_EQ(reading.feed(bytes, piece), Outcome::whole) << piece;
      const auto request = reading.reader.take();
      EXPECT_EQ(request->method, "POST");
      EXPECT_EQ(request->path, "/a/b");
      EXPECT_EQ(request->query, "q=1");
      EXPECT_EQ(request->body, "hello");
      EXPECT_EQ(request->remote, "client");
      EXPECT_TRUE(reading.reader.keep_alive());
    }
  }
}

TEST(RequestReader, WhatFollowsARequestIsTheNextOne) {
  Reading reading;
  const std::string one = "GET /1 HTTP/1.1\r\nHost: h\r\n\r\n", two = "GET /2 HTTP/1.0\r\n\r\n";
  reading.reader.append(one + two);
  ASSERT_EQ(reading.step(), Outcome::whole);
  EXPECT_EQ(reading.reader.take()->path, "/1");
  reading.reader.begin();
  ASSERT_EQ(reading.step(), Outcome::whole);
  EXPECT_EQ(reading.reader.take()->path, "/2");
  EXPECT_FALSE(reading.reader.keep_alive());
  EXPECT_FALSE(reading.reader.chunks());
}

TEST(RequestReader, RefusesWithAStatusAndAnId) {
  const std::pair<const char*, int> cases[] = {
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 999999999\r\n\r\n", 413},
      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 415},
      {"GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n", 400},
  };
  for (const auto& [bytes, status] : cases) {
    Reading reading;
    ASSERT_EQ(reading.feed(bytes, 1000), Outcome::refused) << bytes;
    EXPECT_EQ(reading.reader.fault().status, status) << bytes;
    EXPECT_TRUE(reading.reader.request()->id.starts_with("req_"));
  }
}

TEST(RequestReader, ATlsHandshakeIsRefusedAtItsSecondByte) {
  Reading reading;
  reading.reader.append("\x16");
  EXPECT_EQ(reading.step(), Outcome::more);
  reading.reader.append("\x03");
  EXPECT_EQ(reading.step(), Outcome::refused);
  EXPECT_EQ(reading.reader.fault().message, "this port has no TLS: use http://");
}

TEST(RequestReader, ABodyTakesItsMemoryFromTheAccount) {
  Reading reading;
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4000000\r\n\r\n";
  ASSERT_EQ(reading.feed(head, head.size()), Outcome::more);
  EXPECT_EQ(reading.memory->used_bytes(), 0u);  // a promised length is not reserved
  ASSERT_EQ(reading.feed(std::string(3 << 20, 'x'), 8192), Outcome::refused);
  EXPECT_EQ(reading.reader.fault().status, 413) << "more than all may have together";
  reading.reader.drop();
  EXPECT_EQ(reading.memory->used_bytes(), 0u);
}

TEST(RequestReader, ABodyWithoutRoomSaysWhoHasIt) {
  const std::string bytes =
      "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n" + std::string(100'000, 'x');
  Reading reading;
  RequestMemory::Share other(reading.memory);
  ASSERT_EQ(other.hold(size_t{960} << 10), RequestMemory::Room::never) << "it is large";
  ASSERT_EQ(other.hold(size_t{760} << 10), RequestMemory::Room::held);
  EXPECT_EQ(reading.feed(bytes, 8192), Outcome::no_room);
  Reading again;
  RequestMemory::Share own(again.memory);
  own.set_client("c");
  ASSERT_EQ(own.hold(size_t{600} << 10), RequestMemory::Room::held);
  again.client = "c";
  EXPECT_EQ(again.feed(bytes, 8192), Outcome::refused);
  EXPECT_EQ(again.reader.fault().status, 429);
  EXPECT_STREQ(again.reader.fault().code, "client_memory");
}

TEST(RequestReader, TheLargestBodyHasRoom) {
  for (const bool chunked : {false, true}) {
    Reading reading;
    reading.options.max_body_bytes = size_t{2} << 20;
    reading.memory = std::make_shared<RequestMemory>(RequestMemory::limit_for(
        reading.options.max_body_bytes + 4 * reading.options.max_header_bytes));
    RequestReader reader(reading.options, reading.memory, "client");
    reader.begin();
    const std::string body(reading.options.max_body_bytes, 'x');
    const std::string bytes =
        chunked ? "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n200000\r\n" +
                      body + "\r\n0\r\n\r\n"
                : "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2097152\r\n\r\n" + body;
    Outcome last = Outcome::more;
    for (size_t at = 0; at < bytes.size() && (last == Outcome::more || last == Outcome::head);
         at += 8192) {
      reader.append(std::string_view(bytes).substr(at, 8192));
      last = reader.advance();
      if (last != Outcome::head) continue;
      reader.accept_body();
      last = reader.advance();
    }
    ASSERT_EQ(last, Outcome::whole) << chunked;
    EXPECT_LE(reader.take()->body.capacity(), body.size() + 1);
  }
}

TEST(RequestReader, TheDeadlineFollowsTheRequest) {
  Reading reading;
  const auto idle = reading.reader.deadline();
  reading.reader.append("POST / HTTP/1.1\r\n");
  ASSERT_EQ(reading.step(), Outcome::more);
  const auto head = reading.reader.deadline();
  EXPECT_LT(head, idle);
  reading.reader.append("Host: h\r\n");
  ASSERT_EQ(reading.step(), Outcome::more);
  EXPECT_EQ(reading.reader.deadline(), head);  // slow bytes do not extend the deadline
  reading.reader.append("Content-Length: 5\r\n\r\n");
  ASSERT_EQ(reading.step(), Outcome::more);
  EXPECT_TRUE(reading.reader.in_body());
  EXPECT_GT(reading.reader.deadline(), head);
}

std::string all_of(HttpAnswerWriter& writer) {
  std::string out;
  while (writer.take_pending()) {
    out += writer.pending();
    writer.sent(writer.pending().size());
  }
  return out;
}

TEST(HttpAnswerWriter, AWholeAnswer) {
  HttpAnswerWriter writer;
  writer.whole({200, "text/plain", "hello", {{"A", "b\r\nc"}}}, {true, false, {{"Server", "s"}}},
               true);
  const std::string wanted =
      "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nConnection: "
      "close\r\nServer: "
      "s\r\nA: b  c\r\n\r\nhello";
  EXPECT_TRUE(writer.finishing());
  EXPECT_EQ(all_of(writer), wanted);
  EXPECT_EQ(writer.take_sent_bytes(), wanted.size());
  writer.end_answer();
  EXPECT_FALSE(writer.finishing());
}

TEST(HttpAnswerWriter, OfHeadTheHeadAlone) {
  HttpAnswerWriter writer;
  writer.whole({200, "text/plain", "hello", {}}, {}, false);
  const std::string out = all_of(writer);
  EXPECT_NE(out.find("Content-Length: 5"), std::string::npos);
  EXPECT_TRUE(out.ends_with("\r\n\r\n"));
}

TEST(HttpAnswerWriter, AStreamIsChunkedWhereTheClientKnowsChunks) {
  for (const bool chunks : {true, false}) {
    HttpAnswerWriter writer;
    EXPECT_FALSE(writer.write("early"));
    writer.begin_answer({}, {chunks, true, {}}, true);
    all_of(writer);
    EXPECT_TRUE(writer.write("0123456789abcdef"));
    EXPECT_FALSE(writer.write(""));
    EXPECT_GT(writer.unsent_bytes(), 0u);
    EXPECT_TRUE(writer.finish_stream());
    EXPECT_FALSE(writer.finish_stream());
    EXPECT_EQ(all_of(writer), chunks ? "10\r\n0123456789abcdef\r\n0\r\n\r\n" : "0123456789abcdef");
  }
}

TEST(HttpAnswerWriter, AStreamOfKnownLengthHasExactlyThatManyBytes) {
  HttpAnswerWriter writer;
  writer.begin_answer({404, {{"Content-Type", "text/x"}}, 5}, {true, true, {}}, true);
  const std::string head = all_of(writer);
  EXPECT_TRUE(head.starts_with("HTTP/1.1 404 Not Found\r\n")) << head;
  EXPECT_NE(head.find("Content-Length: 5\r\n"), head.npos);
  EXPECT_NE(head.find("Content-Type: text/x\r\n"), head.npos);
  EXPECT_EQ(head.find("chunked"), head.npos);
  EXPECT_TRUE(writer.write("abc"));
  EXPECT_FALSE(writer.finish_stream()) << "two bytes are missing";
  EXPECT_FALSE(writer.write("def")) << "one too many";
  EXPECT_TRUE(writer.write("de"));
  EXPECT_TRUE(writer.finish_stream());
  EXPECT_EQ(all_of(writer), "abcde");
}

TEST(HttpAnswerWriter, AStreamWithoutBodyIsItsHead) {
  for (const int status : {200, 204, 304}) {
    HttpAnswerWriter writer;
    writer.begin_answer({status, {}, 7}, {true, true, {}}, /*with_body=*/false);
    EXPECT_FALSE(writer.write("dropped"));
    EXPECT_TRUE(writer.finish_stream());
    const std::string all = all_of(writer);
    EXPECT_TRUE(all.ends_with("\r\n\r\n")) << all;
    EXPECT_EQ(all.find("chunked"), all.npos);
    EXPECT_EQ(all.find("Content-Length: 7") != all.npos, status != 204) << all;
  }
}

TEST(RequestMemory, AClientHoldsAtMostAsMuchAsIsFreeBesideOneRequest) {
  using Room = RequestMemory::Room;
  constexpr size_t kMiB = size_t{1} << 20;
  const auto memory = std::make_shared<RequestMemory>(16 * kMiB);
  {
    RequestMemory::Share alone(memory);
    alone.set_client("a");
    EXPECT_EQ(alone.hold(12 * kMiB), Room::held) << "one request may be as large as any";
  }
  std::list<RequestMemory::Share> of_a, of_b, of_nobody;
  const auto fill = [&](std::list<RequestMemory::Share>& shares, const char* client) {
    while (shares.size() < 100) {
      shares.emplace_back(memory).set_client(client);
      const Room room = shares.back().hold(kMiB);
      if (room == Room::held) continue;
      shares.pop_back();
      return room;
    }
    return Room::held;
  };
  EXPECT_EQ(fill(of_a, "a"), Room::client);
  EXPECT_EQ(of_a.size(), 8u);
  EXPECT_EQ(of_a.back().hold(2 * kMiB), Room::client) << "nor may one of them grow";
  EXPECT_EQ(fill(of_b, "b"), Room::client);
  EXPECT_EQ(of_b.size(), 4u);
  EXPECT_EQ(fill(of_nobody, ""), Room::busy);
  EXPECT_EQ(of_nobody.size(), 4u);
  of_a.clear();
  of_b.clear();
  of_nobody.clear();
  EXPECT_EQ(memory->used_bytes(), 0u);
  EXPECT_EQ(fill(of_b, "b"), Room::client);
  EXPECT_EQ(of_b.size(), 8u) << "nothing is left of the others";
}

TEST(RequestMemory, LargeHoldersLeaveAQuarterToOthers) {
  const auto memory = std::make_shared<RequestMemory>(size_t{16} << 20);
  RequestMemory::Share large(memory), larger(memory), small(memory);
  using Room = RequestMemory::Room;
  EXPECT_EQ(large.hold(size_t{12} << 20), Room::held);
  EXPECT_EQ(larger.hold(size_t{2} << 20), Room::busy);
  EXPECT_EQ(larger.hold(size_t{13} << 20), Room::never);
  EXPECT_EQ(small.hold(size_t{1} << 20), Room::held);
  EXPECT_TRUE(memory->can_ever_hold(size_t{12} << 20));
  EXPECT_FALSE(memory->can_ever_hold(size_t{13} << 20))
      << "alone it has no more than large ones have together";
}

}  // namespace
}  // namespace braid::server
