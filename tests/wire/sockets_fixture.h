// A run directory with one socket path in it, and sockets on it; for the tests of
// actors/wire/socket.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

#include "actors/wire/socket.h"
#include "tests/wire/run_environment.h"

namespace optlease {

class Sockets : public RunEnvironment {
 protected:
  Sockets() : path_(make_run_directory("job").store_socket()) {}

  Socket bind(Socket::Type type, const SocketOptions& options = {}) {
    Result<Socket> socket = Socket::bind(context_, type, path_, options);
    EXPECT_TRUE(socket.is_ok()) << socket.status().text();
    return std::move(socket).value();
  }
  Socket connect(Socket::Type type, const SocketOptions& options = {}) {
    Result<Socket> socket = Socket::connect(context_, type, path_, options);
    EXPECT_TRUE(socket.is_ok()) << socket.status().text();
    return std::move(socket).value();
  }
  Socket dealer(const std::string& id) {
    SocketOptions options;
    options.routing_id = id;
    return connect(Socket::Type::kDealer, options);
  }
  bool exists() const { return ::access(path_.c_str(), F_OK) == 0; }

  // Leaves the socket file of a listener that is gone.
  void leave_stale_socket() const {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(fd, 1), 0);
    ::close(fd);
  }

  SocketContext context_;
  std::string path_;
};

}  // namespace optlease
