;; A pointer chase: each word is the address of the next one. Stands behind `shards.wat`.
;;
;; payload   16 depth   24 address
;; reply     the address after `depth` steps, 8 bytes; after 65,536 steps here, or without hops:
;;           an address and the depth that is left, 16 bytes
(func (export "chase") (param $at i32) (param $len i32) (result i32)
  (local $depth i64) (local $address i64) (local $words i64) (local $begin i64) (local $here i64)
  (local $base i32) (local $end i64)
  (call $open (local.get $at) (local.get $len) (i32.const 32))
  (local.set $depth (i64.load offset=16 (local.get $at)))
  (local.set $address (i64.load offset=24 (local.get $at)))
  (if (i64.gt_u (local.get $depth) (i64.const 65536))
    (then (local.set $end (i64.sub (local.get $depth) (i64.const 65536)))))
  ;; Locals stay in registers during the loops. In mapped memory, words are bounded once, here.
  (local.set $words (global.get $words))
  (local.set $begin (global.get $begin))
  (local.set $base (global.get $base))
  (if (i64.gt_u (local.get $words) (global.get $total)) (then (call $outside)))
  (block $ends
    (block $away
      (if (local.get $base)
        (then (loop $mapped
          (br_if $ends (i64.eq (local.get $depth) (local.get $end)))
          (br_if $away (i64.ge_u
            (local.tee $here (i64.sub (local.get $address) (local.get $begin)))
            (local.get $words)))
          (local.set $address (i64.load (i32.add (local.get $base)
            (i32.shl (i32.wrap_i64 (local.get $here)) (i32.const 3)))))
          (local.set $depth (i64.sub (local.get $depth) (i64.const 1)))
          (br $mapped)))
        (else (loop $called
          (br_if $ends (i64.eq (local.get $depth) (local.get $end)))
          (br_if $away (i64.ge_u
            (local.tee $here (i64.sub (local.get $address) (local.get $begin)))
            (local.get $words)))
          (local.set $address
            (call $load64 (global.get $grant) (i64.shl (local.get $here) (i64.const 3))))
          (local.set $depth (i64.sub (local.get $depth) (i64.const 1)))
          (br $called)))))
    (br_if $ends (i32.eqz (call $hops)))
    (i64.store offset=16 (local.get $at) (local.get $depth))
    (i64.store offset=24 (local.get $at) (local.get $address))
    (call $move (local.get $address) (i32.const 0) (local.get $at) (i32.const 32))
    (return (i32.const 0)))
  (i64.store (local.get $at) (local.get $address))
  (i64.store offset=8 (local.get $at) (local.get $depth))
  (call $reply (local.get $at)
    (select (i32.const 8) (i32.const 16) (i64.eqz (local.get $depth))))
  (i32.const 0))
