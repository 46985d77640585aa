;; What the kernels of operations share: it stands before each of them in its module.
;;
;; Memory: texts at 0, a buffer of 64 KiB at 65536, then the payload.
;; A payload begins with   0 words of each unit   8 first unit   12 number of units (24 bits)
;;                         15 grant (8 bits)
;; The address of word i of the n-th unit is n * words + i.
(import "samite" "memory" (memory 2))
(import "samite" "me" (func $me (result i32)))
(import "samite" "hops" (func $hops (result i32)))
(import "samite" "base" (func $base_of (param i32) (result i32)))
(import "samite" "len" (func $len_of (param i32) (result i64)))
(import "samite" "load64" (func $load64 (param i32 i64) (result i64)))
(import "samite" "store64" (func $store64 (param i32 i64 i64)))
(import "samite" "copy_in" (func $copy_in (param i32 i64 i32 i32)))
(import "samite" "reply" (func $reply (param i32 i32)))
(import "samite" "fail" (func $fail (param i32 i32 i32)))
(import "samite" "forward" (func $forward (param i32 i32 i32 i32)))

(data (i32.const 0) "an address outside of the shards")
(data (i32.const 32) "a damaged structure")
(data (i32.const 64) "a payload of another operation")
(data (i32.const 96) "a newer run has begun")

(global $words (mut i64) (i64.const 0)) ;; words of each unit
(global $first (mut i32) (i32.const 0))
(global $count (mut i32) (i32.const 0)) ;; units
(global $grant (mut i32) (i32.const 0))
(global $base (mut i32) (i32.const 0)) ;; address of this unit's words, 0 if they are not mapped
(global $total (mut i64) (i64.const 0)) ;; words of this unit's segment
(global $begin (mut i64) (i64.const 0)) ;; address of this unit's first word

;; These end the kernel.
(func $outside (call $fail (i32.const 2) (i32.const 0) (i32.const 32)) (unreachable))
(func $damaged (call $fail (i32.const 3) (i32.const 32) (i32.const 19)) (unreachable))

;; Reads the beginning of a payload of at least $least bytes.
(func $open (param $at i32) (param $len i32) (param $least i32)
  (if (i32.lt_u (local.get $len) (local.get $least))
    (then (call $fail (i32.const 1) (i32.const 64) (i32.const 30))))
  (global.set $words (i64.load (local.get $at)))
  (if (i64.eqz (global.get $words))
    (then (call $fail (i32.const 1) (i32.const 64) (i32.const 30))))
  (global.set $first (i32.load offset=8 (local.get $at)))
  (global.set $count (i32.and (i32.load offset=12 (local.get $at)) (i32.const 0xffffff)))
  (global.set $grant (i32.load8_u offset=15 (local.get $at)))
  (global.set $base (call $base_of (global.get $grant)))
  (global.set $total (i64.shr_u (call $len_of (global.get $grant)) (i64.const 3)))
  (global.set $begin (i64.mul (global.get $words)
    (i64.extend_i32_u (i32.sub (call $me) (global.get $first))))))

;; Loads a word of this unit, by its index.
(func $load (param $index i64) (result i64)
  (if (i64.ge_u (local.get $index) (global.get $total)) (then (call $outside)))
  (if (global.get $base)
    (then (return (i64.load (i32.add (global.get $base)
      (i32.shl (i32.wrap_i64 (local.get $index)) (i32.const 3)))))))
  (call $load64 (global.get $grant) (i64.shl (local.get $index) (i64.const 3))))

;; Goes on at an entry of the unit that has an address.
(func $move (param $address i64) (param $entry i32) (param $at i32) (param $len i32)
  (local $shard i64)
  (local.set $shard (i64.div_u (local.get $address) (global.get $words)))
  (if (i64.ge_u (local.get $shard) (i64.extend_i32_u (global.get $count)))
    (then (call $outside)))
  (call $forward (i32.add (global.get $first) (i32.wrap_i64 (local.get $shard)))
    (local.get $entry) (local.get $at) (local.get $len)))
