// SPDX-License-Identifier: Apache-2.0
//
// The thread that the connections of one kind run on. Included only by http.cc
// and tls_front.cc, to keep Boost out of everything else.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "server/core/log.h"

namespace reprise::server {

template <typename Connection>
class EventLoop {
 public:
  explicit EventLoop(size_t most) : most_(most) {
    // Creates the event loop's descriptors now: later there may be none left.
    boost::system::error_code ignored;
    Tcp::socket first(io_);
    first.open(Tcp::v4(), ignored);
    thread_ = std::thread([this] { Run(); });
  }
  ~EventLoop() { Stop(); }

  // Takes over a connected TCP socket and passes it to `begin`, on the thread;
  // closes it if there are too many.
  template <typename Begin>
  void Adopt(int fd, Begin begin) {
    boost::asio::post(io_, [this, fd, begin = std::move(begin)] {
      sockaddr_storage address{};
      socklen_t size = sizeof(address);
      boost::system::error_code error;
      Tcp::socket socket(io_);
      (void)::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
      socket.assign(address.ss_family == AF_INET6 ? Tcp::v6() : Tcp::v4(), fd,
                    error);
      if (error) {
        ::close(fd);
        return;
      }
      if (open_.size() < most_) begin(std::move(socket));
    });
  }

  // Closes all connections and ends the thread.
  void Stop() {
    if (!thread_.joinable()) return;
    boost::asio::post(io_, [this] {
      // Closing a connection may destroy it, which removes it from the set.
      std::vector<std::shared_ptr<Connection>> open;
      for (Connection* connection : open_) {
        if (auto held = connection->weak_from_this().lock()) {
          open.push_back(std::move(held));
        }
      }
      for (const auto& connection : open) connection->Close();
      work_.reset();
    });
    thread_.join();
  }

  boost::asio::io_context& io() { return io_; }
  // Connections enter it and leave it themselves, on the thread.
  std::set<Connection*>& open() { return open_; }

 private:
  using Tcp = boost::asio::ip::tcp;

  // If a request cannot get memory or a descriptor, neither other requests nor
  // the process may end.
  void Run() {
    while (true) {
      try {
        io_.run();
        return;
      } catch (const std::exception& error) {
        LogError("connection_failed",
                 StrCat("a connection failed: ", error.what()));
      }
    }
  }

  const size_t most_;
  std::set<Connection*> open_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type>
      work_ = boost::asio::make_work_guard(io_);
  std::thread thread_;
};

}  // namespace reprise::server
