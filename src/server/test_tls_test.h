// test_tls_test.h -- for tests: a certificate and a TLS client.
#pragma once

#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdio>
#include <memory>
#include <string>

#include "server/test_server_test.h"

namespace braid::server {

// A self-signed certificate and its key, in two files that are deleted with this object.
class TestCertificate {
 public:
  TestCertificate()
      : base_(testing::TempDir() + "braid-" + std::to_string(::getpid()) + "-" +
              std::to_string(reinterpret_cast<uintptr_t>(this))) {
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"),
                                                                  EVP_PKEY_free);
    const std::unique_ptr<X509, decltype(&X509_free)> of(X509_new(), X509_free);
    ASN1_INTEGER_set(X509_get_serialNumber(of.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(of.get()), -60);
    X509_gmtime_adj(X509_getm_notAfter(of.get()), 3600);
    X509_set_pubkey(of.get(), key.get());
    X509_NAME* name = X509_get_subject_name(of.get());
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
    X509_set_issuer_name(of.get(), name);
    EXPECT_GT(X509_sign(of.get(), key.get(), EVP_sha256()), 0);
    std::FILE* file = std::fopen(key_path().c_str(), "w");
    EXPECT_EQ(PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr), 1);
    std::fclose(file);
    file = std::fopen(path().c_str(), "w");
    EXPECT_EQ(PEM_write_X509(file, of.get()), 1);
    std::fclose(file);
  }
  ~TestCertificate() {
    std::remove(path().c_str());
    std::remove(key_path().c_str());
  }
  std::string path() const { return base_ + ".crt"; }
  std::string key_path() const { return base_ + ".key"; }

 private:
  std::string base_;
};

class TlsClient {
 public:
  explicit TlsClient(uint16_t port)
      : socket_(port), context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free) {
    const timeval limit{20, 0};
    ::setsockopt(socket_.descriptor(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), socket_.descriptor());
    connected_ = SSL_connect(ssl_.get()) == 1;
  }
  bool connected() const { return connected_; }
  bool send(const std::string& bytes) {
    return connected_ && SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) > 0;
  }
  // Reads until the server closes its side.
  std::string read_all() {
    std::string out;
    char buffer[16384];
    for (int count; connected_ && (count = SSL_read(ssl_.get(), buffer, sizeof buffer)) > 0;) {
      out.append(buffer, static_cast<size_t>(count));
    }
    return out;
  }

 private:
  Client socket_;
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_{nullptr, SSL_free};
  bool connected_ = false;
};

}  // namespace braid::server
