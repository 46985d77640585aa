/* What the libzmq peers of the benches share: messages without copies by the user, and memory that is
 * used again.
 */
#ifndef SAMITE_BENCH_ZMQ_PEER_H
#define SAMITE_BENCH_ZMQ_PEER_H

#include "peer.h"
#include <malloc.h>
#include <zmq.h>

/* The library allocates a buffer for each message that it receives. Without these settings, the kernel
 * takes back that of a large one each time, and clears its pages for the next one. */
static inline void keep_memory(void)
{
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, -1);
    mallopt(M_ARENA_MAX, 1);
}

/* The owner keeps it. */
static inline void keep(void *data, void *hint)
{
    (void)data;
    (void)hint;
}

/* Sends without a copy: the bytes must stay until `release`. */
static inline void say_in_place(void *sock, void *bytes, size_t count, zmq_free_fn *release, void *hint)
{
    zmq_msg_t message;
    if (zmq_msg_init_data(&message, bytes, count, release, hint)
        || zmq_msg_send(&message, sock, 0) != (int)count)
        die("zmq_msg_send");
}

/* Receives a message into memory of the library, which the caller closes. */
static inline size_t hear_in_place(void *sock, zmq_msg_t *message)
{
    zmq_msg_init(message);
    if (zmq_msg_recv(message, sock, 0) < 0)
        die("zmq_msg_recv");
    return zmq_msg_size(message);
}

static inline void set_option(void *sock, int option, int value)
{
    if (zmq_setsockopt(sock, option, &value, sizeof value))
        die("zmq_setsockopt");
}

#endif
