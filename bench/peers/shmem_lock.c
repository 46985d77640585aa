/* The lock of OpenSHMEM: shmem_set_lock and shmem_clear_lock. */
#include "shmem_peer.h"
#include "lock.h"

static long lock;

static void hold(void)
{
    if (!counter)
        counter = shmem_ptr(symmetric(4096), 0);
    if (!counter)
        die("shmem_ptr");
}

static void let_go(void)
{
}

static void acquire(void)
{
    shmem_set_lock(&lock);
}

static void release(void)
{
    shmem_clear_lock(&lock);
}
