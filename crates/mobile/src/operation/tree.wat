;; The look-up of a key in a B-tree. Stands behind `shards.wat`.
;;
;; payload   16 key   24 address of a node   32 1: the least key that is not below, 0: this key
;;           36 how many nodes may still be visited
;; reply     key and value, 16 bytes; none if there is no such key
;;
;; A node of fan-out F has 2 F + 2 words (`tree.rs`): 0 head, 1 F keys, 1 + F values or children,
;; 1 + 2 F the next leaf. Head: keys in use (bits 0..16), level (16..32), F (32..48).

;; Returns the number of the first $count keys from $index on that are not above $key.
(func $rank (param $index i64) (param $count i64) (param $key i64) (result i64)
  (local $low i64) (local $middle i64)
  (block $done (loop $next
    (br_if $done (i64.ge_u (local.get $low) (local.get $count)))
    (local.set $middle
      (i64.shr_u (i64.add (local.get $low) (local.get $count)) (i64.const 1)))
    (if (i64.le_u
          (call $load (i64.add (local.get $index) (local.get $middle))) (local.get $key))
      (then (local.set $low (i64.add (local.get $middle) (i64.const 1))))
      (else (local.set $count (local.get $middle))))
    (br $next)))
  (local.get $low))

;; Replies with a pair of the leaf at $index.
(func $found (param $at i32) (param $index i64) (param $fan i64) (param $place i64)
  (local.set $index (i64.add (i64.add (local.get $index) (i64.const 1)) (local.get $place)))
  (i64.store (local.get $at) (call $load (local.get $index)))
  (i64.store offset=8 (local.get $at)
    (call $load (i64.add (local.get $index) (local.get $fan))))
  (call $reply (local.get $at) (i32.const 16)))

(func (export "find") (param $at i32) (param $len i32) (result i32)
  (local $key i64) (local $node i64) (local $above i32) (local $left i32)
  (local $index i64) (local $head i64) (local $count i64) (local $fan i64) (local $rank i64)
  (call $open (local.get $at) (local.get $len) (i32.const 40))
  (local.set $key (i64.load offset=16 (local.get $at)))
  (local.set $node (i64.load offset=24 (local.get $at)))
  (local.set $above (i32.load offset=32 (local.get $at)))
  (local.set $left (i32.load offset=36 (local.get $at)))
  (block $away (loop $next
    (local.set $index (i64.sub (local.get $node) (global.get $begin)))
    (br_if $away (i64.ge_u (local.get $index) (global.get $words)))
    (if (i32.eqz (local.get $left)) (then (call $damaged)))
    (local.set $left (i32.sub (local.get $left) (i32.const 1)))
    (local.set $head (call $load (local.get $index)))
    (local.set $count (i64.and (local.get $head) (i64.const 0xffff)))
    (local.set $fan (i64.and (i64.shr_u (local.get $head) (i64.const 32)) (i64.const 0xffff)))
    (if (i32.or
          (i64.gt_u (local.get $count) (local.get $fan))
          (i32.or
            (i64.eqz (local.get $count))
            (i64.lt_u
              (i64.sub (global.get $words) (local.get $index))
              (i64.add (i64.shl (local.get $fan) (i64.const 1)) (i64.const 2)))))
      (then (call $damaged)))
    (local.set $rank (call $rank
      (i64.add (local.get $index) (i64.const 1)) (local.get $count) (local.get $key)))
    ;; In an inner node: on to the last child whose least key is not above the key.
    (if (i64.ne (i64.and (local.get $head) (i64.const 0xffff0000)) (i64.const 0)) (then
      (if (i64.eqz (local.get $rank)) (then
        (if (i32.eqz (local.get $above)) (then (return (i32.const 0))))
        (local.set $rank (i64.const 1))))
      (local.set $node (call $load
        (i64.add (i64.add (local.get $index) (local.get $fan)) (local.get $rank))))
      (br $next)))
    ;; In a leaf: this key, or the one behind it, perhaps in the next leaf.
    (if (i64.ne (local.get $rank) (i64.const 0)) (then
      (if (i64.eq
            (call $load (i64.add (local.get $index) (local.get $rank))) (local.get $key))
        (then
          (call $found (local.get $at) (local.get $index) (local.get $fan)
            (i64.sub (local.get $rank) (i64.const 1)))
          (return (i32.const 0))))))
    (if (i32.eqz (local.get $above)) (then (return (i32.const 0))))
    (if (i64.lt_u (local.get $rank) (local.get $count)) (then
      (call $found (local.get $at) (local.get $index) (local.get $fan) (local.get $rank))
      (return (i32.const 0))))
    (local.set $node (call $load
      (i64.add (i64.add (local.get $index) (i64.const 1))
        (i64.shl (local.get $fan) (i64.const 1)))))
    (if (i64.eq (local.get $node) (i64.const -1)) (then (return (i32.const 0))))
    (br $next)))
  (i64.store offset=24 (local.get $at) (local.get $node))
  (i32.store offset=36 (local.get $at) (local.get $left))
  (call $move (local.get $node) (i32.const 0) (local.get $at) (i32.const 40))
  (i32.const 0))
