/* The store of SWARM for C++17: handles that free what they own, and errors that are thrown, over swarm.h.
 *
 *   swarm::store db("/dev/shm/pool");
 *   db.put("color", "green");
 *   if (auto color = db.get("color")) std::cout << *color;
 *
 * Keys and values are std::string_view: any bytes. What a function may end in is what swarm.h says of the call of its name; a
 * status below zero is thrown as swarm::error. Threads: any number may use a store; one at a time an operation or a cursor. What was
 * moved from is empty: it may be assigned to and destroyed, and all else with it throws (SWARM_ERROR_ARGUMENT).
 */
#ifndef SWARM_HPP
#define SWARM_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "swarm.h"

namespace swarm {

/* A call that failed. */
class error : public std::runtime_error {
public:
    explicit error(const swarm_error &of)
        : std::runtime_error(of.message), status_(of.status), may_have_taken_effect_(of.may_have_taken_effect) {}

    /* What to do: SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM, ... */
    swarm_status status() const noexcept { return status_; }
    /* Whether a write that ended so may have taken effect. */
    bool may_have_taken_effect() const noexcept { return may_have_taken_effect_; }

private:
    swarm_status status_;
    bool may_have_taken_effect_;
};

namespace detail {

/* Runs a call, which is given where its error goes. Throws if it fails. */
template <typename Call>
swarm_status run(Call &&call) {
    swarm_error failed;
    const swarm_status status = call(&failed);
    if (status < 0) throw error(failed);
    return status;
}

/* Where a call puts what it opens: `owner` has it even if the call fails. */
template <typename Opened, typename Closer, typename Call>
swarm_status open(std::unique_ptr<Opened, Closer> &owner, Call &&call) {
    Opened *opened = nullptr;
    return run([&](swarm_error *failed) {
        const swarm_status status = call(&opened, failed);
        owner.reset(opened);
        return status;
    });
}

/* A value for C, where NULL stands for none: one of length zero has a pointer. */
inline const void *bytes(const std::optional<std::string_view> &value) noexcept {
    if (!value) return nullptr;
    return value->empty() ? "" : value->data();
}
inline std::size_t length(const std::optional<std::string_view> &value) noexcept { return value ? value->size() : 0; }

struct closer {
    void operator()(swarm_store *store) const noexcept { swarm_close(store, nullptr); }
    void operator()(swarm_cursor *cursor) const noexcept { swarm_cursor_close(cursor); }
    void operator()(swarm_operation *operation) const noexcept { swarm_operation_free(operation, nullptr); }
    void operator()(void *value) const noexcept { swarm_free(value); }
};

} // namespace detail

/* Keys that were found, in no order. It may outlive its store. */
class cursor {
public:
    /* The next key, which is there until the cursor is destroyed; nothing at the end. */
    std::optional<std::string_view> next() {
        const void *key;
        std::size_t length;
        const auto status = detail::run(
            [&](swarm_error *failed) { return swarm_cursor_next(owned_.get(), &key, &length, failed); });
        if (status != SWARM_OK) return std::nullopt;
        return std::string_view(static_cast<const char *>(key), length);
    }

private:
    friend class store;
    cursor() = default;
    std::unique_ptr<swarm_cursor, detail::closer> owned_;
};

/* An operation that was submitted. It may outlive its store. Destroyed before its end it is broken off: a write may take effect or
 * not. What swarm_submit_get says of operations that are not polled holds. */
class operation {
public:
    /* Goes on with it: whether it has ended. Throws what it failed for, each time. */
    bool poll() { return go_on(swarm_poll) != SWARM_PENDING; }

    /* Waits for its end: SWARM_OK, SWARM_ABSENT, SWARM_EXISTS or SWARM_LOST. Throws what it failed for. */
    swarm_status wait() { return go_on(swarm_wait); }

    /* The value that a get has found; nothing if it has found none or has not ended. It is there until the operation is destroyed. */
    std::optional<std::string_view> value() const noexcept { return owned_ ? value_ : std::nullopt; }

private:
    friend class store;
    operation() = default;

    template <typename Call>
    swarm_status go_on(Call &&call) {
        const void *value;
        std::size_t length;
        const auto status =
            detail::run([&](swarm_error *failed) { return call(owned_.get(), &value, &length, failed); });
        if (value != nullptr) value_ = std::string_view(static_cast<const char *>(value), length);
        return status;
    }

    std::unique_ptr<swarm_operation, detail::closer> owned_;
    std::optional<std::string_view> value_;
};

/* Makes a pool. Of what is zero the default is taken. */
inline void create(const std::string &path, std::size_t nodes = 0, std::uint64_t capacity = 0, std::size_t max_clients = 0) {
    detail::run([&](swarm_error *failed) { return swarm_create(path.c_str(), nodes, capacity, max_clients, failed); });
}

/* A handle to a pool. It belongs to the process that opened it: a forked child calls reopen(). */
class store {
public:
    /* Opens the pool at `path`, for so many operations at a time; zero is the default. */
    explicit store(const std::string &path, std::size_t clients = 0) {
        detail::open(owned_, [&](swarm_store **opened, swarm_error *failed) {
            return swarm_open(path.c_str(), clients, opened, failed);
        });
    }

    /* The same, for a handle that, if memory is short, kills processes that were stopped for so long in the middle of an operation. */
    store(const std::string &path, std::size_t clients, std::chrono::milliseconds stopped) {
        const auto least = stopped.count() > 0 ? static_cast<std::uint64_t>(stopped.count()) : 0;
        detail::open(owned_, [&](swarm_store **opened, swarm_error *failed) {
            return swarm_open_evicting(path.c_str(), clients, least, opened, failed);
        });
    }

    /* Another handle to the pool that is there now, in this process. */
    store reopen() const {
        store another;
        detail::open(another.owned_, [&](swarm_store **opened, swarm_error *failed) {
            return swarm_reopen(owned_.get(), opened, failed);
        });
        return another;
    }

    /* The value of `key`; nothing if it is not there. */
    std::optional<std::string> get(std::string_view key) const {
        std::unique_ptr<void, detail::closer> value;
        std::size_t length;
        const auto status = detail::open(value, [&](void **found, swarm_error *failed) {
            return swarm_get_alloc(owned_.get(), key.data(), key.size(), found, &length, failed);
        });
        if (status == SWARM_ABSENT) return std::nullopt;
        return std::string(static_cast<const char *>(value.get()), length);
    }

    /* Copies the value of `key` into `buffer`: its length; nothing if it is not there. Throws SWARM_ERROR_BUFFER if it is longer. */
    std::optional<std::size_t> get(std::string_view key, void *buffer, std::size_t capacity) const {
        std::size_t length;
        const auto status = detail::run([&](swarm_error *failed) {
            return swarm_get(owned_.get(), key.data(), key.size(), buffer, capacity, &length, failed);
        });
        if (status == SWARM_ABSENT) return std::nullopt;
        return length;
    }

    /* Makes `value` the value of `key`, whether it is there or not. */
    void put(std::string_view key, std::string_view value) const { write(swarm_put, key, value); }
    /* Adds `key`. False, and no effect, if it is there already. */
    bool insert(std::string_view key, std::string_view value) const { return write(swarm_insert, key, value) == SWARM_OK; }
    /* Replaces the value of `key`. False, and no effect, if it is not there. */
    bool update(std::string_view key, std::string_view value) const { return write(swarm_update, key, value) == SWARM_OK; }

    /* Takes `key` away, whether it is there or not (swarm_delete). */
    void erase(std::string_view key) const {
        detail::run([&](swarm_error *failed) { return swarm_delete(owned_.get(), key.data(), key.size(), failed); });
    }

    /* Makes `new_value` the value of `key` if its value is `expected`; nothing stands for no value, on either side. False, and no effect,
     * if it is another. */
    bool compare_and_swap(std::string_view key, std::optional<std::string_view> expected,
                          std::optional<std::string_view> new_value) const {
        const auto status = detail::run([&](swarm_error *failed) {
            return swarm_compare_and_swap(owned_.get(), key.data(), key.size(), detail::bytes(expected), detail::length(expected),
                                          detail::bytes(new_value), detail::length(new_value), failed);
        });
        return status == SWARM_OK;
    }

    /* Puts a value, and lets the key expire after that time. Values have up to 4088 bytes. */
    void put(std::string_view key, std::string_view value, std::chrono::milliseconds ttl) const {
        detail::run([&](swarm_error *failed) {
            return swarm_put_with_ttl(owned_.get(), key.data(), key.size(), value.data(), value.size(),
                                      static_cast<std::uint64_t>(ttl.count() < 0 ? 0 : ttl.count()), failed);
        });
    }

    /* For how long `key` is there yet: milliseconds::max() if it does not expire, nothing if it is not there. */
    std::optional<std::chrono::milliseconds> ttl(std::string_view key) const {
        std::uint64_t left;
        const auto status = detail::run(
            [&](swarm_error *failed) { return swarm_ttl(owned_.get(), key.data(), key.size(), &left, failed); });
        if (status == SWARM_ABSENT) return std::nullopt;
        return left == UINT64_MAX ? std::chrono::milliseconds::max() : std::chrono::milliseconds(left);
    }

    /* Lets `key` stay, if it is to expire: whether it was. */
    bool persist(std::string_view key) const {
        return detail::run([&](swarm_error *failed) { return swarm_persist(owned_.get(), key.data(), key.size(), failed); }) ==
               SWARM_OK;
    }

    /* Adds `by` to the number under `key`, in decimal digits: the sum. No value counts as 0. */
    std::int64_t increment(std::string_view key, std::int64_t by = 1) const {
        std::int64_t sum;
        detail::run([&](swarm_error *failed) {
            return swarm_increment(owned_.get(), key.data(), key.size(), by, &sum, failed);
        });
        return sum;
    }

    /* The keys that begin with `prefix`, in no order: for (auto keys = db.keys("co"); auto key = keys.next();) ... */
    cursor keys(std::string_view prefix = {}) const {
        cursor found;
        detail::open(found.owned_, [&](swarm_cursor **opened, swarm_error *failed) {
            return swarm_keys(owned_.get(), prefix.data(), prefix.size(), opened, failed);
        });
        return found;
    }

    operation submit_get(std::string_view key) const { return submit(swarm_submit_get, key); }
    operation submit_put(std::string_view key, std::string_view value) const { return submit(swarm_submit_put, key, value); }
    operation submit_insert(std::string_view key, std::string_view value) const { return submit(swarm_submit_insert, key, value); }
    operation submit_update(std::string_view key, std::string_view value) const { return submit(swarm_submit_update, key, value); }
    operation submit_compare_and_swap(std::string_view key, std::optional<std::string_view> expected,
                                      std::optional<std::string_view> new_value) const {
        operation begun;
        detail::open(begun.owned_, [&](swarm_operation **opened, swarm_error *failed) {
            return swarm_submit_compare_and_swap(owned_.get(), key.data(), key.size(), detail::bytes(expected),
                                                 detail::length(expected), detail::bytes(new_value), detail::length(new_value), opened,
                                                 failed);
        });
        return begun;
    }
    /* The operation's value is the sum, in decimal digits. */
    operation submit_increment(std::string_view key, std::int64_t by = 1) const {
        operation begun;
        detail::open(begun.owned_, [&](swarm_operation **opened, swarm_error *failed) {
            return swarm_submit_increment(owned_.get(), key.data(), key.size(), by, opened, failed);
        });
        return begun;
    }
    operation submit_erase(std::string_view key) const { return submit(swarm_submit_delete, key); }

    /* The handle in C, which stays this one's. */
    swarm_store *c_handle() const noexcept { return owned_.get(); }

private:
    store() = default;

    template <typename Call>
    swarm_status write(Call &&call, std::string_view key, std::string_view value) const {
        return detail::run([&](swarm_error *failed) {
            return call(owned_.get(), key.data(), key.size(), value.data(), value.size(), failed);
        });
    }

    template <typename Call>
    operation submit(Call &&call, std::string_view key) const {
        operation begun;
        detail::open(begun.owned_, [&](swarm_operation **opened, swarm_error *failed) {
            return call(owned_.get(), key.data(), key.size(), opened, failed);
        });
        return begun;
    }

    template <typename Call>
    operation submit(Call &&call, std::string_view key, std::string_view value) const {
        operation begun;
        detail::open(begun.owned_, [&](swarm_operation **opened, swarm_error *failed) {
            return call(owned_.get(), key.data(), key.size(), value.data(), value.size(), opened, failed);
        });
        return begun;
    }

    std::unique_ptr<swarm_store, detail::closer> owned_;
};

} // namespace swarm

#endif // SWARM_HPP
