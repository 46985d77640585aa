;; Replies with the 32-bit words of its input that are below a bound, in order: `Mobile::map`.
;; The payload is 16 bytes of head, the bound with 12 bytes of padding, and words.
(module
  (import "samite" "memory" (memory 1))
  (import "samite" "reply" (func $reply (param i32 i32)))
  ;; Stores a word at `to`, and returns where the next one goes: behind it, if it is below.
  (func $keep (param $to i32) (param $from i32) (param $bound i32) (result i32)
    (i32.store (local.get $to) (i32.load (local.get $from)))
    (i32.add (local.get $to) (i32.shl
      (i32.lt_u (i32.load (local.get $from)) (local.get $bound)) (i32.const 2))))
  (func (export "below") (param $at i32) (param $len i32) (result i32)
    (local $from i32) (local $end i32) (local $to i32) (local $kept i32) (local $bound v128)
    (local.set $bound (i32x4.splat (i32.load offset=16 (local.get $at))))
    (local.set $from (i32.add (local.get $at) (i32.const 32)))
    (local.set $end (i32.add (local.get $at) (local.get $len)))
    ;; 16 words at once: at a low selectivity, few of them have one that is kept.
    (block $done
      (loop $next
        (br_if $done (i32.gt_u (i32.add (local.get $from) (i32.const 64)) (local.get $end)))
        ;; A bit for each word that is kept.
        (local.set $kept (i8x16.bitmask (i8x16.narrow_i16x8_s
          (i16x8.narrow_i32x4_s
            (i32x4.lt_u (v128.load (local.get $from)) (local.get $bound))
            (i32x4.lt_u (v128.load offset=16 (local.get $from)) (local.get $bound)))
          (i16x8.narrow_i32x4_s
            (i32x4.lt_u (v128.load offset=32 (local.get $from)) (local.get $bound))
            (i32x4.lt_u (v128.load offset=48 (local.get $from)) (local.get $bound))))))
        (block $none
          (loop $word
            (br_if $none (i32.eqz (local.get $kept)))
            (i32.store (local.get $to) (i32.load (i32.add (local.get $from)
              (i32.shl (i32.ctz (local.get $kept)) (i32.const 2)))))
            (local.set $to (i32.add (local.get $to) (i32.const 4)))
            (local.set $kept
              (i32.and (local.get $kept) (i32.sub (local.get $kept) (i32.const 1))))
            (br $word)))
        (local.set $from (i32.add (local.get $from) (i32.const 64)))
        (br $next)))
    (block $end
      (loop $rest
        (br_if $end (i32.ge_u (local.get $from) (local.get $end)))
        (local.set $to (call $keep (local.get $to) (local.get $from)
          (i32x4.extract_lane 0 (local.get $bound))))
        (local.set $from (i32.add (local.get $from) (i32.const 4)))
        (br $rest)))
    (call $reply (i32.const 0) (local.get $to))
    (i32.const 0)))
