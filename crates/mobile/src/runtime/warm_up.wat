;; What compilers find in kernels: loads, stores, a loop, a branch, calls, an atomic instruction.
(module
  (import "samite" "memory" (memory 1))
  (import "samite" "reply" (func $reply (param i32 i32)))
  (import "samite" "base" (func $base (param i32) (result i32)))
  (global $word (mut i32) (i32.const 0))
  (func (export "run") (param $at i32) (param $len i32) (result i32)
    (local $sum i64)
    (if (i32.eqz (global.get $word)) (then (global.set $word (call $base (i32.const 0)))))
    (block $done
      (loop $next
        (br_if $done (i32.lt_u (local.get $len) (i32.const 8)))
        (local.set $sum (i64.add (local.get $sum) (i64.load (local.get $at))))
        (local.set $at (i32.add (local.get $at) (i32.const 8)))
        (local.set $len (i32.sub (local.get $len) (i32.const 8)))
        (br $next)))
    (drop (i64.atomic.rmw.add (global.get $word) (local.get $sum)))
    (i64.store (i32.const 0) (local.get $sum))
    (call $reply (i32.const 0) (i32.const 8))
    (i32.const 0)))
