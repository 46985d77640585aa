;; One step of a breadth-first search at one unit. Stands behind `shards.wat`, whose words are
;; vertices here: vertex i of the n-th unit is n * (vertices of each unit) + i.
;;
;; payload   16 grant of the marks   20 run   24 level   28 words of the reply, at most
;;           32 0, or 1 + the edge at which the first candidate goes on   40 candidates
;; reply     0 how many candidates are done   8 0, or where the next one goes on, as above
;;           16 vertices that were found   24 candidates of the next level
;;
;; links (granted)   one word per vertex, and one more: where its edges begin; then the edges
;; marks (granted)   one word that kernels do not use, then one per vertex:
;;                   run (bits 32..64), announced (31), level (0..31)
(global $marks (mut i32) (i32.const 0)) ;; grant
(global $mark_base (mut i32) (i32.const 0))
(global $mark_end (mut i64) (i64.const 0)) ;; words of the marks
(global $run (mut i64) (i64.const 0)) ;; as in a mark

;; Returns the mark of a vertex of this unit.
(func $mark (param $index i64) (result i64)
  (local $mark i64)
  (local.set $index (i64.add (local.get $index) (i64.const 1)))
  (if (i64.ge_u (local.get $index) (global.get $mark_end)) (then (call $outside)))
  (local.set $mark
    (if (result i64) (global.get $mark_base)
      (then (i64.load (i32.add (global.get $mark_base)
        (i32.shl (i32.wrap_i64 (local.get $index)) (i32.const 3)))))
      (else (call $load64 (global.get $marks) (i64.shl (local.get $index) (i64.const 3))))))
  (if (i64.gt_u
        (i64.shr_u (local.get $mark) (i64.const 32)) (i64.shr_u (global.get $run) (i64.const 32)))
    (then (call $fail (i32.const 4) (i32.const 96) (i32.const 21))))
  (local.get $mark))

;; Marks a vertex whose mark has been read.
(func $set_mark (param $index i64) (param $mark i64)
  (local.set $index (i64.add (local.get $index) (i64.const 1)))
  (if (global.get $mark_base)
    (then (i64.store (i32.add (global.get $mark_base)
      (i32.shl (i32.wrap_i64 (local.get $index)) (i32.const 3))) (local.get $mark)))
    (else (call $store64 (global.get $marks) (i64.shl (local.get $index) (i64.const 3))
      (local.get $mark)))))

;; Returns whether a mark is of this run.
(func $is_own (param $mark i64) (result i32)
  (i64.eq (i64.shr_u (local.get $mark) (i64.const 32))
          (i64.shr_u (global.get $run) (i64.const 32))))

(func (export "step") (param $at i32) (param $len i32) (result i32)
  (local $level i64) (local $room i32) (local $out i32) (local $found i64) (local $budget i32)
  (local $next i32) (local $count i32) (local $edge i64) (local $end i64) (local $goes_on i64)
  (local $index i64) (local $vertex i64) (local $mark i64) (local $each i64) (local $all i64)
  (call $open (local.get $at) (local.get $len) (i32.const 40))
  (global.set $marks (i32.load offset=16 (local.get $at)))
  (global.set $mark_base (call $base_of (global.get $marks)))
  (global.set $mark_end (i64.shr_u (call $len_of (global.get $marks)) (i64.const 3)))
  (global.set $run (i64.shl (i64.load32_u offset=20 (local.get $at)) (i64.const 32)))
  (local.set $level (i64.load32_u offset=24 (local.get $at)))
  (local.set $room (i32.load offset=28 (local.get $at)))
  (local.set $goes_on (i64.load offset=32 (local.get $at)))
  (local.set $count (i32.shr_u (i32.sub (local.get $len) (i32.const 40)) (i32.const 3)))
  (local.set $each (global.get $words))
  (local.set $all (i64.mul (local.get $each) (i64.extend_i32_u (global.get $count))))
  ;; The reply is made in the buffer.
  (if (i32.gt_u (local.get $room) (i32.const 8189)) (then (local.set $room (i32.const 8189))))
  (local.set $budget (i32.const 16384))
  (block $full
    (loop $candidate
      (br_if $full (i32.eq (local.get $next) (local.get $count)))
      (br_if $full (i32.eqz (local.get $budget)))
      (local.set $budget (i32.sub (local.get $budget) (i32.const 1)))
      (local.set $index (i64.sub
        (i64.load offset=40 (i32.add (local.get $at) (i32.shl (local.get $next) (i32.const 3))))
        (global.get $begin)))
      (if (i64.ge_u (local.get $index) (local.get $each)) (then (call $outside)))
      (block $visited
        (if (i64.eqz (local.get $goes_on)) (then
          (local.set $mark (call $mark (local.get $index)))
          (br_if $visited (i32.and
            (call $is_own (local.get $mark))
            (i64.eqz (i64.and (local.get $mark) (i64.const 0x80000000)))))
          (call $set_mark (local.get $index) (i64.or (global.get $run) (local.get $level)))
          (local.set $found (i64.add (local.get $found) (i64.const 1)))
          (local.set $goes_on (i64.const 1))))
        (local.set $edge (i64.add (call $load (local.get $index))
          (i64.sub (local.get $goes_on) (i64.const 1))))
        (local.set $end (call $load (i64.add (local.get $index) (i64.const 1))))
        (if (i64.gt_u (local.get $end) (global.get $total)) (then (call $outside)))
        (loop $neighbour
          (br_if $visited (i64.ge_u (local.get $edge) (local.get $end)))
          (br_if $full (i32.or
            (i32.eq (local.get $out) (local.get $room)) (i32.eqz (local.get $budget))))
          (local.set $budget (i32.sub (local.get $budget) (i32.const 1)))
          (local.set $vertex (call $load
            (i64.add (i64.add (local.get $each) (i64.const 1)) (local.get $edge))))
          (if (i64.ge_u (local.get $vertex) (local.get $all)) (then (call $outside)))
          (local.set $edge (i64.add (local.get $edge) (i64.const 1)))
          (local.set $goes_on (i64.add (local.get $goes_on) (i64.const 1)))
          ;; A neighbour at this unit is announced once.
          (local.set $index (i64.sub (local.get $vertex) (global.get $begin)))
          (if (i64.lt_u (local.get $index) (local.get $each)) (then
            (br_if $neighbour (call $is_own (call $mark (local.get $index))))
            (call $set_mark (local.get $index)
              (i64.or (i64.or (global.get $run) (i64.const 0x80000000)) (local.get $level)))))
          (i64.store offset=65560 (i32.shl (local.get $out) (i32.const 3)) (local.get $vertex))
          (local.set $out (i32.add (local.get $out) (i32.const 1)))
          (br $neighbour)))
      ;; This candidate is done.
      (local.set $goes_on (i64.const 0))
      (local.set $next (i32.add (local.get $next) (i32.const 1)))
      (br $candidate)))
  (i64.store (i32.const 65536) (i64.extend_i32_u (local.get $next)))
  (i64.store (i32.const 65544) (local.get $goes_on))
  (i64.store (i32.const 65552) (local.get $found))
  (call $reply (i32.const 65536)
    (i32.add (i32.const 24) (i32.shl (local.get $out) (i32.const 3))))
  (i32.const 0))
