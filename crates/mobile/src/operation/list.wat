;; The look-up of a key in a linked list. Stands behind `shards.wat`.
;;
;; payload   16 key   24 address   32 how many nodes may still be visited
;; reply     the value, 8 bytes; none if the key is not there; without hops, 16 bytes: the address
;;           of the node at which to go on, and how many may still be visited
;;
;; A node: 0 key, 1 value, 2 address of the next node, -1 at the end (words).
;; Entry `find`: the address is that of a word that has the address of the first node.
;; Entry `follow`: it is that of a node.
(func $walk (param $at i32) (param $node i64) (result i32)
  (local $key i64) (local $left i64) (local $index i64) (local $turns i32)
  (local.set $key (i64.load offset=16 (local.get $at)))
  (local.set $left (i64.load offset=32 (local.get $at)))
  (block $away
    (loop $next
      (if (i64.eq (local.get $node) (i64.const -1)) (then (return (i32.const 0))))
      (local.set $index (i64.sub (local.get $node) (global.get $begin)))
      (br_if $away (i64.ge_u (local.get $index) (global.get $words)))
      ;; After so many nodes, others get their turn.
      (br_if $away (i32.eq (local.get $turns) (i32.const 16384)))
      (if (i64.eqz (local.get $left)) (then (call $damaged)))
      (if (i64.lt_u (i64.sub (global.get $words) (local.get $index)) (i64.const 3))
        (then (call $damaged)))
      (local.set $left (i64.sub (local.get $left) (i64.const 1)))
      (local.set $turns (i32.add (local.get $turns) (i32.const 1)))
      (if (i64.eq (call $load (local.get $index)) (local.get $key)) (then
        (i64.store (local.get $at) (call $load (i64.add (local.get $index) (i64.const 1))))
        (call $reply (local.get $at) (i32.const 8))
        (return (i32.const 0))))
      (local.set $node (call $load (i64.add (local.get $index) (i64.const 2))))
      (br $next)))
  (i64.store offset=24 (local.get $at) (local.get $node))
  (i64.store offset=32 (local.get $at) (local.get $left))
  (if (i32.eqz (call $hops)) (then
    (call $reply (i32.add (local.get $at) (i32.const 24)) (i32.const 16))
    (return (i32.const 0))))
  (call $move (local.get $node) (i32.const 1) (local.get $at) (i32.const 40))
  (i32.const 0))
(func (export "find") (param $at i32) (param $len i32) (result i32)
  (local $index i64)
  (call $open (local.get $at) (local.get $len) (i32.const 40))
  (local.set $index (i64.sub (i64.load offset=24 (local.get $at)) (global.get $begin)))
  (if (i64.ge_u (local.get $index) (global.get $words)) (then (call $outside)))
  (call $walk (local.get $at) (call $load (local.get $index))))
(func (export "follow") (param $at i32) (param $len i32) (result i32)
  (call $open (local.get $at) (local.get $len) (i32.const 40))
  (call $walk (local.get $at) (i64.load offset=24 (local.get $at))))
