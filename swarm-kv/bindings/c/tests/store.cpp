// What a program in C++ meets beside what it meets in C (store.c): ownership, moves, exceptions. Its argument is a pool that it has to itself.
#include <cstdlib>
#include <iostream>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <vector>

#include <swarm.hpp>

#include "check.hpp"

static_assert(!std::is_copy_constructible_v<swarm::store> && std::is_nothrow_move_constructible_v<swarm::store>);
static_assert(!std::is_copy_constructible_v<swarm::operation> && std::is_nothrow_move_constructible_v<swarm::operation>);
static_assert(!std::is_copy_constructible_v<swarm::cursor> && std::is_nothrow_move_constructible_v<swarm::cursor>);
static_assert(std::is_base_of_v<std::runtime_error, swarm::error>);

static void values_are_any_bytes(const swarm::store &db) {
    using namespace std::string_literals;
    CHECK(!db.get("cpp"));
    CHECK(!db.update("cpp", "0"));
    CHECK(db.insert("cpp", "1") && !db.insert("cpp", "2"));
    CHECK(db.get("cpp") == "1");
    db.put("cpp", "a\0b"s);
    CHECK(db.get("cpp") == "a\0b"s);
    CHECK(db.update("cpp", ""));
    CHECK(db.get("cpp") == "");
    db.put("cpp", std::string(1 << 20, 'x'));
    CHECK(db.get("cpp")->size() == 1 << 20);
    char buffer[4];
    CHECK(thrown([&] { db.get("cpp", buffer, sizeof buffer); }) == SWARM_ERROR_BUFFER);
    db.put("cpp", "four");
    CHECK(db.get("cpp", buffer, sizeof buffer) == 4u && std::string(buffer, 4) == "four");
    db.erase("cpp");
    CHECK(!db.get("cpp") && !db.get("cpp", buffer, sizeof buffer));
}

static void values_that_depend_on_the_one_before(const swarm::store &db) {
    CHECK(!db.compare_and_swap("swap", "0", "1"));
    CHECK(db.compare_and_swap("swap", std::nullopt, ""));
    CHECK(!db.compare_and_swap("swap", std::nullopt, "1"));
    CHECK(db.compare_and_swap("swap", "", "1") && db.get("swap") == "1");
    CHECK(db.submit_compare_and_swap("swap", "0", "2").wait() == SWARM_LOST);
    CHECK(db.submit_compare_and_swap("swap", "1", std::nullopt).wait() == SWARM_OK && !db.get("swap"));
    db.put("life", "1", std::chrono::hours(1));
    CHECK(db.ttl("life").value() > std::chrono::minutes(50) && db.persist("life") && !db.persist("life"));
    CHECK(db.ttl("life").value() == std::chrono::milliseconds::max() && !db.ttl("none"));
    db.put("life", "2", std::chrono::milliseconds(0));
    CHECK(!db.get("life"));
    CHECK(db.increment("sum") == 1 && db.increment("sum", -3) == -2 && db.get("sum") == "-2");
    auto added = db.submit_increment("sum", 44);
    CHECK(added.wait() == SWARM_OK && added.value() == "42");
    db.put("sum", "many");
    CHECK(thrown([&] { db.increment("sum"); }) == SWARM_ERROR_GIVE_UP);
    db.erase("sum");
}

static void errors_are_thrown(const swarm::store &db, const std::string &pool) {
    CHECK(thrown([&] { db.put("", "value"); }) == SWARM_ERROR_ARGUMENT);
    CHECK(thrown([&] { db.put("key", std::string((1 << 20) + 1, 'x')); }) == SWARM_ERROR_ARGUMENT);
    CHECK(thrown([&] { db.submit_get(""); }) == SWARM_ERROR_ARGUMENT);
    CHECK(thrown([&] { swarm::store none(pool + "/none"); }) == SWARM_ERROR_OPEN);
    CHECK(thrown([&] { swarm::create(pool); }) == SWARM_ERROR_OPEN);
    CHECK(thrown([] { swarm::store("/no/pool", 1, std::chrono::seconds(30)); }) == SWARM_ERROR_OPEN);
    CHECK(!swarm::store(pool, 1, std::chrono::seconds(30)).reopen().get("of a handle that may evict"));
}

static void what_was_moved_from_is_empty(const std::string &pool) {
    swarm::store db(pool, 1);
    swarm::store moved(std::move(db));
    moved.put("moved", "yes");
    CHECK(thrown([&] { db.get("moved"); }) == SWARM_ERROR_ARGUMENT);
    auto get = moved.submit_get("moved");
    auto keys = moved.keys("mov");
    db = std::move(moved);
    db = swarm::store(pool, 1);
    // The handle that they came from is closed by now.
    CHECK(get.wait() == SWARM_OK && get.value() == "yes" && get.poll());
    auto taken = std::move(get);
    CHECK(taken.value() == "yes");
    CHECK(keys.next() == "moved" && !keys.next() && !keys.next());
    CHECK(db.submit_insert("moved", "no").wait() == SWARM_EXISTS);
    CHECK(db.submit_update("moved", "again").wait() == SWARM_OK);
    CHECK(db.submit_erase("moved").wait() == SWARM_OK);
    CHECK(db.submit_get("moved").wait() == SWARM_ABSENT);
}

static void threads_share_a_handle(const swarm::store &db) {
    std::vector<std::thread> threads;
    for (int me = 0; me < 4; me++)
        threads.emplace_back([&db, me] {
            for (int n = 0; n < 300; n++) db.put("thread " + std::to_string(me), std::to_string(n));
        });
    for (auto &thread : threads) thread.join();
    for (int me = 0; me < 4; me++) CHECK(db.get("thread " + std::to_string(me)) == "299");
}

static void a_child_opens_its_own(const swarm::store &db) {
    db.put("parent", "here");
    const pid_t process = fork();
    if (process == 0) {
        alarm(60);
        failures = 0;
        CHECK(thrown([&] { db.get("parent"); }) == SWARM_ERROR_FORKED);
        {
            auto own = db.reopen();
            CHECK(own.get("parent") == "here");
            own.put("child", "too");
        }
        _exit(failures != 0);
    }
    int status = -1;
    CHECK(waitpid(process, &status, 0) == process && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(db.get("child") == "too");
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    try {
        swarm::store db(argv[1]);
        values_are_any_bytes(db);
    values_that_depend_on_the_one_before(db);
        errors_are_thrown(db, argv[1]);
        what_was_moved_from_is_empty(argv[1]);
        threads_share_a_handle(db);
        a_child_opens_its_own(db);
    } catch (const std::exception &error) {
        std::cerr << error.what() << "\n";
        return 3;
    }
    std::cout << failures << " failures\n";
    return failures != 0;
}
