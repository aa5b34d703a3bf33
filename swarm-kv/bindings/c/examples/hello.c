/* Opens a pool, and uses it.
 *
 *   cc hello.c $(pkg-config --cflags --libs swarm) -o hello && ./hello /dev/shm/pool
 */
#include <stdio.h>
#include <string.h>
#include <swarm.h>

static int failed(const swarm_error *error) {
    fprintf(stderr, "hello: %s: %s\n", swarm_status_name(error->status), error->message);
    return 3;
}

static int use(swarm_store *store) {
    swarm_error error;
    const char *key = "color", *green = "green", *red = "red";
    swarm_status status;

    if (swarm_put(store, key, strlen(key), green, strlen(green), &error) < 0) return failed(&error);
    status = swarm_insert(store, key, strlen(key), red, strlen(red), &error);
    if (status < 0) return failed(&error);
    if (status == SWARM_EXISTS) printf("there is a color already\n");

    /* Into a buffer of one's own; swarm_get_alloc and swarm_free do without. */
    char value[16];
    size_t length;
    status = swarm_get(store, key, strlen(key), value, sizeof value, &length, &error);
    if (status < 0) return failed(&error);
    if (status == SWARM_OK) printf("the color is %.*s\n", (int)length, value);
    else printf("another process has deleted it already\n");

    swarm_cursor *cursor;
    if (swarm_keys(store, NULL, 0, &cursor, &error) < 0) return failed(&error);
    const void *found;
    while (swarm_cursor_next(cursor, &found, &length, &error) == SWARM_OK)
        printf("there is a key of %zu bytes: %.*s\n", length, (int)length, (const char *)found);
    swarm_cursor_close(cursor);

    /* Several at a time: submitted first, and polled for. */
    swarm_operation *get;
    if (swarm_submit_get(store, key, strlen(key), &get, &error) < 0) return failed(&error);
    const void *color;
    while ((status = swarm_poll(get, &color, &length, &error)) == SWARM_PENDING) { /* something else */ }
    if (status == SWARM_OK) printf("the color is still %.*s\n", (int)length, (const char *)color);
    swarm_operation_free(get, NULL);
    return status < 0 ? failed(&error) : 0;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: hello POOL\n");
        return 2;
    }
    swarm_error error;
    swarm_store *store;
    if (swarm_open(argv[1], 0, &store, &error) < 0) return failed(&error);
    int result = use(store);
    swarm_close(store, NULL);
    return result;
}
