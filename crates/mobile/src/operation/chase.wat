;; A pointer chase through a table of words that is spread over units.
;;
;; payload   0 depth   8 address   16 words of each unit (bits 0..40), first unit (40..56), grant (56..)
;; reply     the address after `depth` steps, 8 bytes
;;
;; The address of word i of the n-th unit is n * words + i. A step reads the next address there.
(module
  (import "samite" "memory" (memory 1))
  (import "samite" "me" (func $me (result i32)))
  (import "samite" "base" (func $base (param i32) (result i32)))
  (import "samite" "load64" (func $load64 (param i32 i64) (result i64)))
  (import "samite" "reply" (func $reply (param i32 i32)))
  (import "samite" "forward" (func $forward (param i32 i32 i32 i32)))
  (func (export "chase") (param $at i32) (param $len i32) (result i32)
    (local $depth i64) (local $address i64) (local $words i64) (local $begin i64) (local $here i64)
    (local $grant i32) (local $base i32) (local $first i32)
    (if (i32.ne (local.get $len) (i32.const 24)) (then (return (i32.const 1))))
    (local.set $depth (i64.load (local.get $at)))
    (local.set $address (i64.load offset=8 (local.get $at)))
    (local.set $words (i64.and (i64.load offset=16 (local.get $at)) (i64.const 0xffffffffff)))
    (local.set $first (i32.load16_u offset=21 (local.get $at)))
    (local.set $grant (i32.load8_u offset=23 (local.get $at)))
    (local.set $base (call $base (local.get $grant)))
    (local.set $begin (i64.mul (local.get $words)
      (i64.extend_i32_u (i32.sub (call $me) (local.get $first)))))
    (block $ends
      (block $away
        (if (local.get $base)
          (then (loop $mapped
            (br_if $ends (i64.eqz (local.get $depth)))
            (br_if $away (i64.ge_u
              (local.tee $here (i64.sub (local.get $address) (local.get $begin)))
              (local.get $words)))
            (local.set $address (i64.load (i32.add (local.get $base)
              (i32.shl (i32.wrap_i64 (local.get $here)) (i32.const 3)))))
            (local.set $depth (i64.sub (local.get $depth) (i64.const 1)))
            (br $mapped)))
          (else (loop $called
            (br_if $ends (i64.eqz (local.get $depth)))
            (br_if $away (i64.ge_u
              (local.tee $here (i64.sub (local.get $address) (local.get $begin)))
              (local.get $words)))
            (local.set $address
              (call $load64 (local.get $grant) (i64.shl (local.get $here) (i64.const 3))))
            (local.set $depth (i64.sub (local.get $depth) (i64.const 1)))
            (br $called)))))
      (if (i64.eqz (local.get $words)) (then (return (i32.const 2))))
      (i64.store (local.get $at) (local.get $depth))
      (i64.store offset=8 (local.get $at) (local.get $address))
      (call $forward
        (i32.add (local.get $first)
          (i32.wrap_i64 (i64.div_u (local.get $address) (local.get $words))))
        (i32.const 0) (local.get $at) (i32.const 24))
      (return (i32.const 0)))
    (i64.store (local.get $at) (local.get $address))
    (call $reply (local.get $at) (i32.const 8))
    (i32.const 0)))
