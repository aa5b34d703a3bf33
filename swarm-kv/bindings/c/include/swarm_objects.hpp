/* What processes coordinate by, for C++17: locks and the like, values that change as a whole, and keys that are watched, over swarm.h.
 *
 *   swarm::lock lock(db, "report");
 *   if (auto guard = lock.acquire_within(5s)) write_report(guard->token());
 *
 * What is held is released when it is destroyed, and lasts beyond its store; what it is acquired of refers to its store. What a function may end in is
 * what swarm.h says of the call of its name. Threads: any number may use a lock and the like; one at a time a guard, a member or a watch.
 */
#ifndef SWARM_OBJECTS_HPP
#define SWARM_OBJECTS_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "swarm.hpp"

namespace swarm {

namespace detail {

struct leaver {
    void operator()(swarm_guard *guard) const noexcept { swarm_guard_release(guard, nullptr); }
    void operator()(swarm_member *member) const noexcept { swarm_member_leave(member, nullptr); }
    void operator()(swarm_watch *watch) const noexcept { swarm_watch_close(watch, nullptr); }
};

inline std::uint64_t milliseconds(std::chrono::milliseconds limit) noexcept {
    return limit.count() > 0 ? static_cast<std::uint64_t>(limit.count()) : 0;
}

/* An object's name, in a store. */
class named {
protected:
    named(const store &of, std::string_view name) : store_(&of), name_(name) {}

    swarm_store *handle() const noexcept { return store_->c_handle(); }
    const char *name() const noexcept { return name_.data(); }
    std::size_t length() const noexcept { return name_.size(); }

private:
    const store *store_;
    std::string name_;
};

} // namespace detail

/* A part of an object that is held. */
class guard {
public:
    /* Larger than those of all holders before: fence with it what the object guards. */
    std::uint64_t token() const noexcept { return swarm_guard_token(owned_.get()); }
    /* Whether a holder before this one died or was evicted, and nobody has settled since. */
    bool is_unsettled() const noexcept { return swarm_guard_is_unsettled(owned_.get()); }
    /* Whether it is held still. */
    bool is_held() const {
        return detail::run([&](swarm_error *failed) { return swarm_guard_is_held(owned_.get(), failed); }) == SWARM_OK;
    }

    /* What holders that have ended wrote under these keys took effect before this, or never will. */
    void settle(const std::vector<std::string_view> &keys) const {
        std::vector<const void *> data;
        std::vector<std::size_t> lengths;
        for (const auto &key : keys) {
            data.push_back(key.data());
            lengths.push_back(key.size());
        }
        detail::run([&](swarm_error *failed) {
            return swarm_guard_settle(owned_.get(), data.data(), lengths.data(), keys.size(), failed);
        });
    }

    /* Releases it. Throws SWARM_ERROR_TAKEN_AWAY if it was held no more. */
    void release() {
        auto *released = owned_.release();
        detail::run([&](swarm_error *failed) { return swarm_guard_release(released, failed); });
    }

    /* Of what once::begin returned: it is done, for good. */
    void done() {
        auto *done = owned_.release();
        detail::run([&](swarm_error *failed) { return swarm_once_done(done, failed); });
    }

    /* Waits by this call for what it makes a guard of; nothing if it does not return SWARM_OK. */
    template <typename Call>
    static std::optional<guard> of(Call &&call) {
        guard held;
        swarm_guard *acquired = nullptr;
        const auto status = detail::run([&](swarm_error *failed) { return call(&acquired, failed); });
        held.owned_.reset(acquired);
        if (status != SWARM_OK) return std::nullopt;
        return held;
    }

private:
    guard() = default;
    std::unique_ptr<swarm_guard, detail::leaver> owned_;
};

/* A lock: one holder at a time, in order of arrival. */
class lock : detail::named {
public:
    lock(const store &of, std::string_view name) : named(of, name) {}

    guard acquire() const { return *wait(SWARM_FOREVER); }
    /* Nothing if it was not free in time. */
    std::optional<guard> acquire_within(std::chrono::milliseconds limit) const { return wait(detail::milliseconds(limit)); }
    /* False, and no effect, if that holds it no more. */
    bool evict(std::uint64_t token) const {
        return detail::run([&](swarm_error *failed) {
                   return swarm_lock_evict(handle(), name(), length(), token, failed);
               }) == SWARM_OK;
    }

private:
    std::optional<guard> wait(std::uint64_t limit) const {
        return guard::of([&](swarm_guard **acquired, swarm_error *failed) {
            return swarm_lock_acquire(handle(), name(), length(), limit, acquired, failed);
        });
    }
};

/* A lock that many hold to read, or one to write. */
class rw_lock : detail::named {
public:
    rw_lock(const store &of, std::string_view name) : named(of, name) {}

    guard read() const { return *wait(swarm_rwlock_read, SWARM_FOREVER); }
    std::optional<guard> read_within(std::chrono::milliseconds limit) const {
        return wait(swarm_rwlock_read, detail::milliseconds(limit));
    }
    guard write() const { return *wait(swarm_rwlock_write, SWARM_FOREVER); }
    std::optional<guard> write_within(std::chrono::milliseconds limit) const {
        return wait(swarm_rwlock_write, detail::milliseconds(limit));
    }
    bool evict(std::uint64_t token) const {
        return detail::run([&](swarm_error *failed) {
                   return swarm_rwlock_evict(handle(), name(), length(), token, failed);
               }) == SWARM_OK;
    }

private:
    template <typename Call>
    std::optional<guard> wait(Call &&call, std::uint64_t limit) const {
        return guard::of([&](swarm_guard **acquired, swarm_error *failed) {
            return call(handle(), name(), length(), limit, acquired, failed);
        });
    }
};

/* So many permits. */
class semaphore : detail::named {
public:
    semaphore(const store &of, std::string_view name, std::uint32_t permits) : named(of, name), permits_(permits) {}

    guard acquire(std::uint32_t wanted = 1) const { return *wait(wanted, SWARM_FOREVER); }
    std::optional<guard> acquire_within(std::chrono::milliseconds limit, std::uint32_t wanted = 1) const {
        return wait(wanted, detail::milliseconds(limit));
    }
    bool evict(std::uint64_t token) const {
        return detail::run([&](swarm_error *failed) {
                   return swarm_semaphore_evict(handle(), name(), length(), permits_, token, failed);
               }) == SWARM_OK;
    }

private:
    std::optional<guard> wait(std::uint32_t wanted, std::uint64_t limit) const {
        return guard::of([&](swarm_guard **acquired, swarm_error *failed) {
            return swarm_semaphore_acquire(handle(), name(), length(), permits_, wanted, limit, acquired, failed);
        });
    }

    std::uint32_t permits_;
};

/* What is done once. */
class once : detail::named {
public:
    once(const store &of, std::string_view name) : named(of, name) {}

    /* Waits until it is done, and returns nothing; or until it is the caller's to do, which calls done() of what it gets. */
    std::optional<guard> begin() const {
        return guard::of([&](swarm_guard **begun, swarm_error *failed) {
            return swarm_once_begin(handle(), name(), length(), SWARM_FOREVER, begun, failed);
        });
    }
    bool evict(std::uint64_t token) const {
        return detail::run([&](swarm_error *failed) {
                   return swarm_once_evict(handle(), name(), length(), token, failed);
               }) == SWARM_OK;
    }
};

/* Who holds an object of the kinds above, and who waits; nothing if nobody has used it yet. */
inline std::optional<swarm_queue> queue_view(const store &of, std::string_view name) {
    swarm_queue queue;
    const auto status = detail::run([&](swarm_error *failed) {
        return swarm_queue_view(of.c_handle(), name.data(), name.size(), &queue, failed);
    });
    if (status != SWARM_OK) return std::nullopt;
    return queue;
}

/* A number that is counted down, and opens at zero. */
class latch : detail::named {
public:
    latch(const store &of, std::string_view name, std::uint64_t count) : named(of, name), count_(count) {}

    /* What is left. */
    std::uint64_t count_down(std::uint64_t by = 1) const {
        std::uint64_t left;
        detail::run([&](swarm_error *failed) {
            return swarm_latch_count_down(handle(), name(), length(), count_, by, &left, failed);
        });
        return left;
    }
    void wait() const { opens(SWARM_FOREVER); }
    /* Whether it is open. */
    bool wait_within(std::chrono::milliseconds limit) const { return opens(detail::milliseconds(limit)); }

private:
    bool opens(std::uint64_t limit) const {
        return detail::run([&](swarm_error *failed) {
                   return swarm_latch_wait(handle(), name(), length(), count_, limit, failed);
               }) == SWARM_OK;
    }

    std::uint64_t count_;
};

/* A member of a barrier. Destroyed, it leaves. */
class member {
public:
    /* Arrives, waits until all members have, and returns who they are by then. Throws SWARM_ERROR_TAKEN_AWAY if it was evicted. */
    swarm_meeting wait() { return *meets(SWARM_FOREVER); }
    /* Nothing if not all came in time: it has arrived, and the next call goes on. */
    std::optional<swarm_meeting> wait_within(std::chrono::milliseconds limit) { return meets(detail::milliseconds(limit)); }
    /* By what others evict it. */
    swarm_seat seat() const noexcept { return swarm_member_seat(owned_.get()); }
    void leave() {
        auto *left = owned_.release();
        detail::run([&](swarm_error *failed) { return swarm_member_leave(left, failed); });
    }

private:
    friend class barrier;
    member() = default;

    std::optional<swarm_meeting> meets(std::uint64_t limit) {
        swarm_meeting meeting;
        const auto status = detail::run(
            [&](swarm_error *failed) { return swarm_member_wait(owned_.get(), limit, &meeting, failed); });
        if (status != SWARM_OK) return std::nullopt;
        return meeting;
    }

    std::unique_ptr<swarm_member, detail::leaver> owned_;
};

/* Where members wait for each other, again and again. */
class barrier : detail::named {
public:
    barrier(const store &of, std::string_view name, std::uint32_t parties) : named(of, name), parties_(parties) {}

    member join() const {
        member joined;
        detail::open(joined.owned_, [&](swarm_member **opened, swarm_error *failed) {
            return swarm_barrier_join(handle(), name(), length(), parties_, opened, failed);
        });
        return joined;
    }
    bool evict(const swarm_seat &seat) const {
        return detail::run([&](swarm_error *failed) {
                   return swarm_barrier_evict(handle(), name(), length(), parties_, seat, failed);
               }) == SWARM_OK;
    }
    swarm_meeting view() const {
        swarm_meeting meeting;
        detail::run([&](swarm_error *failed) {
            return swarm_barrier_view(handle(), name(), length(), parties_, &meeting, failed);
        });
        return meeting;
    }

private:
    std::uint32_t parties_;
};

/* An integer of 64 bits that changes as a whole, of whatever process: `initial` until it is changed, which all users pass. */
class atomic : detail::named {
public:
    atomic(const store &of, std::string_view name, std::uint64_t initial = 0) : named(of, name), initial_(initial) {}

    std::uint64_t load() const {
        return status_and_value([&](std::uint64_t *value, swarm_error *failed) {
                   return swarm_atomic_load(handle(), name(), length(), initial_, value, failed);
               }).second;
    }
    /* The value before. */
    std::uint64_t exchange(std::uint64_t value) const {
        return status_and_value([&](std::uint64_t *before, swarm_error *failed) {
                   return swarm_atomic_swap(handle(), name(), length(), initial_, value, before, failed);
               }).second;
    }
    /* Whether it was `expected`, which becomes the value that was there. */
    bool compare_exchange(std::uint64_t &expected, std::uint64_t desired) const {
        const auto [status, found] = status_and_value([&](std::uint64_t *was, swarm_error *failed) {
            return swarm_atomic_compare_exchange(handle(), name(), length(), initial_, expected, desired, was, failed);
        });
        expected = found;
        return status == SWARM_OK;
    }
    /* The value before. */
    std::uint64_t fetch_add(std::uint64_t by = 1) const {
        return status_and_value([&](std::uint64_t *before, swarm_error *failed) {
                   return swarm_atomic_fetch_add(handle(), name(), length(), initial_, by, before, failed);
               }).second;
    }
    /* Makes it what `change` makes of it, and returns the values before and after. It is called again where another change came first;
     * where it throws, nothing changes. */
    template <typename Change>
    std::pair<std::uint64_t, std::uint64_t> fetch_update(Change &&change) const {
        auto value = load();
        for (;;) {
            const std::uint64_t changed = change(value);
            if (compare_exchange(value, changed)) return {value, changed};
        }
    }

private:
    template <typename Call>
    static std::pair<swarm_status, std::uint64_t> status_and_value(Call &&call) {
        std::uint64_t value = 0;
        const auto status = detail::run([&](swarm_error *failed) { return call(&value, failed); });
        return {status, value};
    }

    std::uint64_t initial_;
};

/* A state that changes as a whole, of whatever process, by a function of the old one: nothing is held. */
class guarded : detail::named {
public:
    guarded(const store &of, std::string_view name) : named(of, name) {}

    /* Nothing if none was ever set. */
    std::optional<std::string> get() const {
        void *state = nullptr;
        std::size_t bytes = 0;
        const auto status = detail::run([&](swarm_error *failed) {
            return swarm_guarded_get_alloc(handle(), name(), length(), &state, &bytes, failed);
        });
        std::unique_ptr<void, detail::closer> owned(state);
        if (status != SWARM_OK) return std::nullopt;
        return std::string(static_cast<const char *>(state), bytes);
    }

    /* Makes the state what `change` makes of it, of std::optional<std::string_view> a std::string, and returns that. It is called again
     * where another change came first; where it throws, nothing changes. */
    template <typename Change>
    std::string update(Change &&change) const {
        struct made {
            Change &change;
            std::string state;
            std::exception_ptr thrown;
        } makes{change, {}, nullptr};
        const auto call = [](void *context, const void *state, std::size_t bytes, const void **changed,
                             std::size_t *changed_length) {
            auto &makes = *static_cast<made *>(context);
            try {
                std::optional<std::string_view> old;
                if (state) old = std::string_view(static_cast<const char *>(state), bytes);
                makes.state = makes.change(old);
                *changed = makes.state.data();
                *changed_length = makes.state.size();
                return true;
            } catch (...) {
                // Nothing unwinds through the library.
                makes.thrown = std::current_exception();
                return false;
            }
        };
        detail::run([&](swarm_error *failed) {
            return swarm_guarded_update(handle(), name(), length(), call, &makes, failed);
        });
        if (makes.thrown) std::rethrow_exception(makes.thrown);
        return std::move(makes.state);
    }
};

/* A key, as it changes. It may outlive its store. */
class watch {
public:
    watch(const store &of, std::string_view key) {
        detail::open(owned_, [&](swarm_watch **opened, swarm_error *failed) {
            return swarm_watch_open(of.c_handle(), key.data(), key.size(), opened, failed);
        });
    }

    /* Waits until the value is another one than it returned last, the first time not at all: then value() has it. */
    void changed() { next(SWARM_FOREVER); }
    /* The same, for so long at most: whether it changed. */
    bool changed_within(std::chrono::milliseconds limit) { return next(detail::milliseconds(limit)); }
    /* The value, until the next call; nothing if the key is not there, or did not change. */
    std::optional<std::string_view> value() const noexcept { return owned_ ? value_ : std::nullopt; }

private:
    bool next(std::uint64_t limit) {
        const void *value;
        std::size_t length;
        value_.reset();
        const auto status = detail::run(
            [&](swarm_error *failed) { return swarm_watch_next(owned_.get(), limit, &value, &length, failed); });
        if (status == SWARM_OK) value_ = std::string_view(static_cast<const char *>(value), length);
        return status != SWARM_TIMED_OUT;
    }

    std::unique_ptr<swarm_watch, detail::leaver> owned_;
    std::optional<std::string_view> value_;
};

} // namespace swarm

#endif // SWARM_OBJECTS_HPP
