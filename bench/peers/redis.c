/* The Redis contestant of `samite bench staging` (see redis.h): two clients. */
#include "staging.h"
#include "redis.h"

static struct link client;
static int server; /* known to rank 0 */

static void set(const void *value, size_t bytes)
{
    send_value(&client, "*3\r\n$3\r\nSET\r\n$4\r\nstep\r\n", value, bytes);
    receive_reply(&client, '+');
}

static void get(void *value, size_t bytes)
{
    send_text(&client, "*2\r\n$3\r\nGET\r\n$4\r\nstep\r\n");
    receive_value(&client, value, bytes);
}

/* What an earlier command left in the server is not this one's. */
static void forget(void)
{
    send_text(&client, "*2\r\n$3\r\nDEL\r\n$4\r\nstep\r\n");
    receive_reply(&client, ':');
    send_text(&client, "*2\r\n$6\r\nMEMORY\r\n$5\r\nPURGE\r\n");
    receive_reply(&client, '+');
}

/* Rank 0 sets a value, then rank 1 gets it. */
static void hand_on(unsigned char *value, size_t bytes, long count)
{
    for (long i = 0; i < count; i++) {
        if (rank == 0)
            set(value, bytes);
        meet(0);
        if (rank == 1)
            get(value, bytes);
        meet(0);
    }
}

static double run(const struct command *k, int is_memory, int *good)
{
    size_t bytes = (size_t)k->bytes;
    if (is_memory && rank == 0)
        forget();
    double before = is_memory ? watch_begin(server) : 0;
    unsigned char *value = take_pages(bytes);
    hand_on(value, bytes, k->warmup);
    double start = now();
    hand_on(value, bytes, k->iters);
    double result = now() - start;
    if (is_memory)
        result = watch_end() - before;
    if (rank == 0)
        fill(value, bytes, 1);
    hand_on(value, bytes, 1);
    int mine = intact(value, bytes, 1);
    *good = mine & (int)meet(mine);
    free(value);
    return result;
}

int main(int argc, char **argv)
{
    const char *text = getenv("SAMITE_BENCH_RANK");
    if (argc != 2 || !text) {
        fprintf(stderr, "usage: SAMITE_BENCH_RANK=0|1 %s CONTROL_FOLDER\n", argv[0]);
        return 2;
    }
    rank = atoi(text);
    die_with_parent();
    /* Before this process is pinned: the server may run wherever there is room. */
    if (rank == 0)
        server = start_server(argv[1]);
    pin(rank);
    acquaint(argv[1]);
    connect_to_server(&client, argv[1]);
    struct control c = control_open(argv[1], rank);
    meet(0);
    answer(&c, "ready");
    for (struct command k; next_command(&c, &k);) {
        int is_memory = !strcmp(k.name, "peak"), good;
        if (!is_memory && strcmp(k.name, "store")) {
            answer(&c, "unsupported");
            continue;
        }
        double value = run(&k, is_memory, &good);
        if (good)
            answer_number(&c, value);
        else
            answer(&c, "error the value that was got is not the value that was set");
    }
    if (server)
        kill(server, SIGKILL);
    return 0;
}
