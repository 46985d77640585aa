;; Words at a list of places of one unit. Stands behind `shards.wat`.
;;
;; payload   16 indices of words of this unit, 8 bytes each
;; reply     the words, in the same order; they take the place of their indices
(func (export "gather") (param $at i32) (param $len i32) (result i32)
  (local $end i32) (local $place i32)
  (call $open (local.get $at) (local.get $len) (i32.const 16))
  (local.set $place (i32.add (local.get $at) (i32.const 16)))
  (local.set $end (i32.add (local.get $at) (i32.and (local.get $len) (i32.const -8))))
  (block $done (loop $next
    (br_if $done (i32.ge_u (local.get $place) (local.get $end)))
    (i64.store (local.get $place) (call $load (i64.load (local.get $place))))
    (local.set $place (i32.add (local.get $place) (i32.const 8)))
    (br $next)))
  (call $reply
    (i32.add (local.get $at) (i32.const 16))
    (i32.sub (i32.sub (local.get $end) (local.get $at)) (i32.const 16)))
  (i32.const 0))
